"""From a template expression to a loadable kernel: source -> nvrtc -> cache, joined by build."""
