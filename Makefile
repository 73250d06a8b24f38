# Two commands: `make run` does the main job on real input, `make test` runs every test.
# Both install what they need. See README.md.

.PHONY: run test setup bench check fmt web install install-c package dist clean

setup:
	@sh scripts/setup.sh

run: setup
	@cargo xtask run

# The rest of the setup runs while the tests are compiled.
test:
	@sh scripts/setup.sh build
	@cargo xtask test

bench: setup
	@cargo xtask bench

check:
	@cargo xtask check

fmt:
	@cargo fmt --all

# The web page that browses images, as one file: target/web/blockwright.html.
web:
	@sh scripts/setup.sh web
	@cargo xtask web

prefix = $(DESTDIR)$(or $(PREFIX),/usr/local)
built = $(or $(CARGO_TARGET_DIR),target)/release/blockwright

install:
	cargo build --release --package blockwright-cli
	sh scripts/install.sh $(built) "$(prefix)" site-functions

# The C library: libblockwright, its header and its pkg-config file.
install-c:
	cargo build --release --package blockwright-capi
	sh scripts/install-c.sh $(dir $(built)) "$(DESTDIR)" "$(or $(PREFIX),/usr/local)"

# A Debian package and an archive of the release build, in target/package-out. The time of the last commit is that of all files.
notices = target/package-notices/THIRD-PARTY.txt
package:
	cargo build --release --package blockwright-cli
	cargo xtask licences $(notices)
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} sh scripts/package.sh $(built) $(notices) target/package-out

# The same of a static program that runs on any Linux, in target/dist-out; the same bytes wherever it is built (`cargo xtask dist --verify`).
dist:
	@sh scripts/setup.sh dist
	@cargo xtask dist

clean:
	cargo clean
