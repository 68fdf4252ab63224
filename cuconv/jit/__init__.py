"""From a template expression to a loadable kernel: `build` joins `source`, `nvrtc` and `cache`."""
