"""The `qwen4_exp` family: gated delta layers, sparse attention, hyper-connections, routed experts, n-gram rows."""
