# Packages: a source tarball, Debian packages, a Homebrew formula.
#   DIST   where they are put                             (build/dist)

DIST ?= $(BUILD)/dist

dist: ## build/dist/calla-VERSION.tar.gz of the committed tree; the same bytes for the same commit
	@sh tools/dist.sh $(DIST)
deb: ## build/dist/calla_*.deb, libcalla-dev_*.deb for this Debian or Ubuntu
	@sh tools/deb.sh $(DIST)
check-deb: deb ## installs them in a bare Debian below a temporary folder (root, debootstrap)
	@sh tools/check-deb.sh $(DIST)
formula: dist ## build/dist/calla.rb, a Homebrew formula; URL=... of the published tarball
	@sh tools/formula.sh $(DIST) '$(URL)'

.PHONY: dist deb check-deb formula
