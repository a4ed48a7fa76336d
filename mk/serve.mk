# The server under real clients, which oracle-env installs, and under load.

client_tests = $(foreach t,$(sort $(wildcard tests/clients/test_*.py)),'clients/$(notdir $(basename $(t)))=CALLA=$(BUILD)/calla $(PYTHON) $(t)')
check-clients: $(BUILD)/calla ## `calla serve` under OpenAI's and Anthropic's clients, and bad ones (PYTHON=...)
	$(run) $(client_tests)

# Python's standard library only. A real run has ten quiet minutes: LOAD_ARGS='--seconds 600'.
bench-serve: $(BUILD)/calla ## the server with 32 clients that come and go; aggregate speed; LOAD_ARGS=
	CALLA=$(BUILD)/calla python3 bench/serve_load.py --overflow
	CALLA=$(BUILD)/calla python3 bench/serve_load.py --scale
	CALLA=$(BUILD)/calla python3 bench/serve_load.py --seconds 60 $(LOAD_ARGS)

.PHONY: check-clients bench-serve
