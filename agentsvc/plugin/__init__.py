"""The public interface for plugins: runtime backends, hooks, and the values both sides exchange."""
