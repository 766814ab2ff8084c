"""What `zygote_probe` would import only later."""
