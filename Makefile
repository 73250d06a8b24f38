# Two commands: `make run` does the main job on real input, `make test` runs every test.
# Both install what they need. See README.md.

.PHONY: run test setup bench check fmt install clean

setup:
	@sh scripts/setup.sh

run: setup
	@cargo xtask run

test: setup
	@cargo xtask test

bench: setup
	@cargo xtask bench

check:
	@cargo xtask check

fmt:
	@cargo fmt --all

install:
	cargo build --release --package blockwright-cli
	install -D -m 0755 target/release/blockwright $(DESTDIR)$(or $(PREFIX),/usr/local)/bin/blockwright
	ln -sf ../bin/blockwright $(DESTDIR)$(or $(PREFIX),/usr/local)/sbin/mount.fuse.blockwright

clean:
	cargo clean
