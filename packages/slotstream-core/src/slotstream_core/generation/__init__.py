"""From a prompt to a stream of events: prefill, sampling, decoding."""
