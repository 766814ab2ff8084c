"""Small parts that every other package uses: errors, values, logs, background tasks, the event bus."""
