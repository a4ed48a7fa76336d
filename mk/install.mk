# make install PREFIX=/usr/local DESTDIR=: the program, the library, its header, pkg-config file,
# man pages, completions, units for systemd or launchd, and, which `calla` looks for in PREFIX/share/calla, the demonstration model and the session of `calla bench --agent`.

BINDIR     ?= $(PREFIX)/bin
LIBDIR     ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR     ?= $(PREFIX)/share/man
DATADIR     = $(PREFIX)/share/calla
BASHDIR    ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR     ?= $(PREFIX)/share/zsh/site-functions
FISHDIR    ?= $(PREFIX)/share/fish/vendor_completions.d
UNITDIR    ?= $(PREFIX)/lib/systemd/system
USERUNITDIR ?= $(PREFIX)/lib/systemd/user
bindir      = sed -e 's|@bindir@|$(BINDIR)|'
INSTALL    ?= install
NANO       := $(filter-out %.md,$(wildcard models/nano/*))

install: all ## into PREFIX (/usr/local), below DESTDIR when that is set
	$(INSTALL) -d '$(DESTDIR)$(BINDIR)' '$(DESTDIR)$(LIBDIR)/pkgconfig' '$(DESTDIR)$(INCLUDEDIR)' \
	    '$(DESTDIR)$(MANDIR)/man1' '$(DESTDIR)$(DATADIR)/models/nano' '$(DESTDIR)$(BASHDIR)' \
	    '$(DESTDIR)$(ZSHDIR)' '$(DESTDIR)$(FISHDIR)'
	$(INSTALL) -m 755 $(BUILD)/calla '$(DESTDIR)$(BINDIR)/calla'
	$(INSTALL) -m 644 $(BUILD)/libcalla.a '$(DESTDIR)$(LIBDIR)/libcalla.a'
	$(INSTALL) -m 644 include/calla.h '$(DESTDIR)$(INCLUDEDIR)/calla.h'
	$(INSTALL) -m 644 docs/calla.1 '$(DESTDIR)$(MANDIR)/man1/calla.1'
	for c in $$($(BUILD)/calla --commands); do \
	    sh tools/man.sh $(BUILD)/calla $$c >$(BUILD)/man.tmp && \
	    $(INSTALL) -m 644 $(BUILD)/man.tmp '$(DESTDIR)$(MANDIR)/man1/'calla-$$c.1 || exit 1; done
	$(BUILD)/calla completion bash >$(BUILD)/completion.bash
	$(BUILD)/calla completion zsh >$(BUILD)/completion.zsh
	$(BUILD)/calla completion fish >$(BUILD)/completion.fish
	$(INSTALL) -m 644 $(BUILD)/completion.bash '$(DESTDIR)$(BASHDIR)/calla'
	$(INSTALL) -m 644 $(BUILD)/completion.zsh '$(DESTDIR)$(ZSHDIR)/_calla'
	$(INSTALL) -m 644 $(BUILD)/completion.fish '$(DESTDIR)$(FISHDIR)/calla.fish'
ifeq ($(OS),Darwin)
	$(INSTALL) -d '$(DESTDIR)$(DATADIR)/launchd'
	$(bindir) packaging/launchd/calla.plist.in >$(BUILD)/unit.tmp
	$(INSTALL) -m 644 $(BUILD)/unit.tmp '$(DESTDIR)$(DATADIR)/launchd/calla.plist'
else
	$(INSTALL) -d '$(DESTDIR)$(UNITDIR)' '$(DESTDIR)$(USERUNITDIR)'
	$(bindir) packaging/systemd/calla.service.in >$(BUILD)/unit.tmp
	$(INSTALL) -m 644 $(BUILD)/unit.tmp '$(DESTDIR)$(UNITDIR)/calla.service'
	$(bindir) packaging/systemd/calla-user.service.in >$(BUILD)/unit.tmp
	$(INSTALL) -m 644 $(BUILD)/unit.tmp '$(DESTDIR)$(USERUNITDIR)/calla.service'
endif
	$(INSTALL) -m 644 $(NANO) '$(DESTDIR)$(DATADIR)/models/nano/'
	$(INSTALL) -m 644 bench/agent/session.jsonl '$(DESTDIR)$(DATADIR)/agent-session.jsonl'
	sed -e 's|@prefix@|$(PREFIX)|' -e 's|@libdir@|$(LIBDIR)|' -e 's|@includedir@|$(INCLUDEDIR)|' \
	    -e 's|@version@|$(VERSION)|' calla.pc.in >'$(DESTDIR)$(LIBDIR)/pkgconfig/calla.pc'
	chmod 644 '$(DESTDIR)$(LIBDIR)/pkgconfig/calla.pc'

uninstall: ## remove what install put there
	rm -f '$(DESTDIR)$(BINDIR)/calla' '$(DESTDIR)$(LIBDIR)/libcalla.a' '$(DESTDIR)$(INCLUDEDIR)/calla.h' \
	    '$(DESTDIR)$(MANDIR)/man1/calla.1' '$(DESTDIR)$(LIBDIR)/pkgconfig/calla.pc' \
	    '$(DESTDIR)$(BASHDIR)/calla' '$(DESTDIR)$(ZSHDIR)/_calla' '$(DESTDIR)$(FISHDIR)/calla.fish' \
	    '$(DESTDIR)$(MANDIR)/man1/'calla-[a-z]*.1 '$(DESTDIR)$(UNITDIR)/calla.service' \
	    '$(DESTDIR)$(USERUNITDIR)/calla.service'
	rm -rf '$(DESTDIR)$(DATADIR)'

.PHONY: install uninstall

# For other languages (examples/hello.py): all objects once more, as position-independent code.
SHARED := libcalla.$(if $(filter Darwin,$(OS)),dylib,so)
$(BUILD)/$(SHARED): $(LIB_OBJ) $(BUILD)/objects.txt
	$(Q)$(LINK) -shared -o $@ $(LIB_OBJ) $(LINK_LIBS)
shared: ## build/libcalla.so, the library for other languages
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/shared CFLAGS='$(CFLAGS) -fPIC' CXXFLAGS='$(CXXFLAGS) -fPIC' \
	    $(BUILD)/shared/$(SHARED)
	@cp -f $(BUILD)/shared/$(SHARED) $(BUILD)/$(SHARED)

.PHONY: shared
