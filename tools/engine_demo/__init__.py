"""Run a real vLLM engine with and without the plugin, and compare tokens and times."""
