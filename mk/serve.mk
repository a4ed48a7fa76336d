# The server under real clients, which oracle-env installs.

client_tests = $(foreach t,$(sort $(wildcard tests/clients/test_*.py)),'clients/$(notdir $(basename $(t)))=CALLA=$(BUILD)/calla $(PYTHON) $(t)')
check-clients: $(BUILD)/calla ## `calla serve` under OpenAI's and Anthropic's clients, and bad ones (PYTHON=...)
	$(run) $(client_tests)

.PHONY: check-clients
