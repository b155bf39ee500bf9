# Each recipe consists of commands that you can also type in a shell.

SHELL := bash
.DEFAULT_GOAL := help

# make demo
BACKEND ?= vxlan
STORE ?= dir
HOSTS ?= 3
KUBE ?=
STATUS ?=
ARGS ?=
# make install
PREFIX ?= /usr/local
DESTDIR ?=
# make fuzz
SECONDS ?= 60
# make image
ARCH ?=
# make conformance
FOCUS ?=
# make test-interop, make bench
GO_FLANNELD ?=
GO_FLANNEL_CNI ?=
GO_FLANNEL_IMAGE ?=

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/flannel-rs
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
# sudo does not pass the environment on, but the tests need the cache of this user, in which `make setup` installed etcd.
AS_ROOT := $(SUDO) env XDG_CACHE_HOME=$(patsubst %/flannel-rs,%,$(CACHE)) GO_FLANNELD=$(abspath $(GO_FLANNELD)) GO_FLANNEL_CNI=$(abspath $(GO_FLANNEL_CNI))
.PHONY: help setup build image demo picture test test-all lint lint-all unit e2e test-more test-kube test-doctor test-page test-sim test-vm planted bench microbench soak conformance test-interop book test-mixed test-images fuzz fuzz-corpus cni install clean

help: ## What can be made
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: ## Get what `make test-all` needs: packages, and Kubernetes and tools from source (twenty minutes, once)
	./e2e/setup.sh all

build: ## Build everything
	./e2e/setup.sh build
	cargo build --workspace

image: ## The container images as archives in target/images, without an engine [ARCH=arm64]
	./e2e/setup.sh image $(ARCH)
	./conf/image/build.sh $(ARCH)

demo: ## Hosts in namespaces, joined by flannel, with traffic; KUBE=1: a real Kubernetes cluster; STATUS=1: six hosts, one broken, and the status page [BACKEND=vxlan|wireguard|host-gw|alloc STORE=dir|etcd HOSTS=3 ARGS=--keep]
ifneq ($(KUBE),)
	./e2e/setup.sh demo-kube
	cargo build -p flanneld -p flannelctl -p flannel-lab -p flannel-cni
	PROFILE=dev PROGRAMS=target/debug CNI_PLUGIN=target/debug/flannel IMAGES=$(CURDIR)/target/demo-images ./conf/image/build.sh
	$(AS_ROOT) ./target/debug/flannelctl lab --kube --hosts $(HOSTS) --images target/demo-images $(ARGS)
else
	./e2e/setup.sh $(if $(filter etcd,$(STORE)),demo-etcd,demo)
	cargo build -p flanneld -p flannelctl -p flannel-lab
	$(AS_ROOT) ./target/debug/flannelctl lab --backend $(BACKEND) --store $(STORE) --hosts $(if $(STATUS),6 --status,$(HOSTS)) $(ARGS)
endif

picture: ## Draw docs/demo.svg and docs/trap.svg from real runs of the demonstration
	./e2e/setup.sh demo
	cargo build -p flanneld -p flannelctl -p flannel-lab
	$(SUDO) script -qec "stty columns 200; ./target/debug/flannelctl lab" /dev/null > target/demo.typescript < /dev/null
	python3 docs/demo-svg.py 'make demo' < target/demo.typescript > docs/demo.svg
	$(SUDO) script -qec "stty columns 120; ./target/debug/flannelctl lab --vagrant" /dev/null > target/trap.typescript < /dev/null
	sed '/Who reaches whom/,$$d' target/trap.typescript | python3 docs/demo-svg.py 'make demo ARGS=--vagrant' 120 > docs/trap.svg

test: ## Format, clippy, and the tests that need packages alone: what CI runs, at most 15 minutes [ARGS=rules::]
	./e2e/run.py test $(ARGS)

test-all: ## All other tests, nightly and before a release: Kubernetes, a virtual machine, a browser, large seeds [ARGS=--resume]
	./e2e/run.py test-all $(ARGS)

TOOLS := $(CACHE)/tools/bin

lint: ## Format and clippy
	./e2e/setup.sh test
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

lint-all: ## Clippy of each feature set, the fuzz targets, private documentation, the book's links, unused dependencies, licences, scripts
	./e2e/setup.sh lint
	cargo clippy --workspace --all-targets -- -D warnings
	@# Each layer of the leases builds without those above it, and so does the test that is written against one of them.
	PATH="$(TOOLS):$$PATH" cargo hack clippy -p subnet-lease -p probing --each-feature --exclude-all-features --exclude-features default -- -D warnings
	cargo clippy -p subnet-lease --no-default-features --features managers --test neutral -- -D warnings
	@# Requests without a runtime.
	cargo clippy -p netlink -- -D warnings
	@# A build without WireGuard in userspace.
	cargo clippy -p backends --no-default-features --all-targets -- -D warnings
	cargo test --quiet -p backends --no-default-features --lib wireguard::
	@# Only test-interop builds it, which needs a Go flanneld.
	cargo clippy -p e2e --test interop -- -D warnings
	RUSTFLAGS="-D warnings" cargo check --quiet --manifest-path fuzz/Cargo.toml --target-dir target/fuzz-check
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --quiet
	./docs/book.sh $(TOOLS)/mdbook
	$(TOOLS)/cargo-machete --skip-target-dir
	$(TOOLS)/cargo-deny --all-features check --hide-inclusion-graph licenses bans sources
	PATH="$$PATH:$(CACHE)/go/bin" go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.7

unit: ## Unit, property, contract and kernel tests, without the end-to-end ones [ARGS=a part of a name]
	./e2e/setup.sh test
	./e2e/run.py compute $(ARGS)
	./e2e/run.py kernel $(ARGS)

e2e: ## End-to-end tests on hosts in namespaces [ARGS=rules:: or the name of a test]
	./e2e/setup.sh test
	./e2e/run.py $(if $(ARGS),only,e2e) $(ARGS)

test-more: ## A stage of test-all: end-to-end tests that take longer, and etcd 3.7 [ARGS=a part of a name]
	./e2e/setup.sh all
	./e2e/run.py more $(ARGS)

test-kube: ## A stage of test-all: real Kubernetes [ARGS=a part of a name]
	./e2e/setup.sh all
	./e2e/run.py kube $(ARGS)

test-doctor: ## A stage of test-all: the doctor's tables of faults and of odd but healthy hosts [ARGS=a part of a name]
	./e2e/setup.sh all
	./e2e/run.py doctor $(ARGS)

test-page: ## A stage of test-all: the status page in a browser, Prometheus [ARGS=a part of a name]
	./e2e/setup.sh all
	./e2e/run.py page $(ARGS)

# Simulations and properties; optimized, so that ten times as many seeds take as long.
test-sim: export PROPTEST_CASES := 10000
test-sim: export SIMULATION_SEEDS := 3000
test-sim: export SIMULATION_NODES := 300
test-sim: export RULES_SETS := 3000
test-sim: ## A stage of test-all: simulations and properties with many seeds, optimized
	./e2e/setup.sh test
	cargo test --profile sim -p subnet-lease --no-default-features --features protocol --lib --test simulation --test laws
	cargo test --profile sim -p netstate -p backends -p packet-engine -p wireguard-userspace -p traffic-rules -p options -p types --lib
	cargo test --profile sim -p probing --test simulation --test many_faults --test day -- --include-ignored

planted: ## Plant each defect of e2e/planted and run the test that has to catch it: before a release [ARGS=a part of a name]
	./e2e/setup.sh test
	./e2e/run.py planted $(ARGS)

book: ## The documentation as a book, target/book/index.html, with every link checked
	./e2e/setup.sh book
	./docs/book.sh $(TOOLS)/mdbook

bench: ## How packets move, scale, healing and memory against the goals [ARGS=--quick, --datapath or --help; GO_FLANNELD=/path/to/flanneld GO_FLANNEL_CNI=/path/to/flannel]
	./e2e/setup.sh bench
	cargo build --release -p flanneld -p flannelctl
	cargo build --release -p e2e --bin bench
	./cni/build.sh
	$(AS_ROOT) ./target/release/bench $(ARGS)

microbench: ## Single functions: diff, look-up, split and merge, checksum, the reader of rules [ARGS=look_up]
	cargo bench -p netstate -p packet-engine -p traffic-rules --bench diff --bench packets --bench reader -- $(ARGS)

soak: ## What takes too long for every night: many restarts, ten minutes of load, healthy networks under load, WireGuard's keys and NAT
	./e2e/setup.sh all
	./e2e/setup.sh soak
	RESTARTS=50 FLANNEL_TEST_GUARD=3600 ./e2e/run.py only rules::restart::
	@# As it is shipped. A healthy network has no findings: ten minutes of each backend under load.
	cargo build --release -p flanneld -p flannelctl
	FLANNEL_BIN_DIR=$(CURDIR)/target/release FLANNEL_TEST_OPEN=600 FLANNEL_TEST_QUIET=600 FLANNEL_TEST_SOAK=600 FLANNEL_TEST_RATE=50000 ./e2e/run.py soak
	$(AS_ROOT) ./e2e/soak/services.sh $(CURDIR)/target/release/flanneld
	@# WireGuard with a real kernel: many restarts, a NAT without rest, a preshared key over the renewal of sessions.
	FLANNEL_TEST_RESTARTS=200 FLANNEL_TEST_PORTS=12 FLANNEL_TEST_PSK=200 FLANNEL_TEST_GUARD=7200 \
	  ./e2e/vm/test.sh 7200 only vm::wireguard::restarts vm::wireguard::key_file
	FLANNEL_BIN_DIR=$(CURDIR)/target/release ./e2e/vm/test.sh 1500 only vm_scale::
	@# A thousand nodes that probe each other take ten minutes of one processor.
	SIMULATION_NODES=1000 cargo test --profile sim -p probing --test simulation --test many_faults --test day -- --include-ignored
	$(MAKE) --no-print-directory conformance

conformance: ## Kubernetes' own tests of networks, with kube-proxy by iptables and nftables: twenty minutes [ARGS=dual_stack FOCUS=regular expression]
	./e2e/setup.sh conformance
	rm -rf target/conformance
	$(if $(FOCUS),FLANNEL_TEST_FOCUS='$(FOCUS)') ./e2e/run.py conformance $(ARGS)
	@echo "conformance: target/conformance/table.md has the results"

test-mixed: ## Nodes of another build among those of this one, and each upgraded in turn [BEFORE=/path/to/flanneld]
	@test -f "$(BEFORE)" || { echo "test-mixed: BEFORE names no flanneld (make test-mixed BEFORE=/path/to/flanneld)"; exit 2; }
	cargo build --workspace
	FLANNEL_BEFORE=$(abspath $(BEFORE)) cargo test -p e2e --test e2e -- --ignored mesh::mixed::

test-interop: ## Mixed clusters with Go flannel, its images in Kubernetes, its CNI plugin [GO_FLANNELD=/path/to/flanneld GO_FLANNEL_IMAGE=/path/to/images.tar GO_FLANNEL_CNI=/path/to/flannel]
ifeq ($(GO_FLANNELD),)
	@echo "test-interop: skipped, because GO_FLANNELD does not name a Go flanneld (make test-interop GO_FLANNELD=/path/to/flanneld)"
else
	cargo build --workspace
	GO_FLANNELD=$(abspath $(GO_FLANNELD)) cargo test -p e2e --test interop
	./e2e/setup.sh vm
	tests=$$(cargo test -p e2e --test interop --no-run --message-format=json | sed -n 's/.*"executable":"\([^"]*\/interop-[^"]*\)".*/\1/p'); \
	  GO_FLANNELD=$(abspath $(GO_FLANNELD)) $(SUDO) ./e2e/vm/run.sh 1200 "$$tests" --include-ignored --test-threads=2 vm_
endif
ifeq ($(GO_FLANNEL_IMAGE),)
	@echo "test-interop: Kubernetes is skipped, because GO_FLANNEL_IMAGE does not name an archive with Go flannel's two images, as docker save writes it"
else
	cargo build --workspace
	GO_FLANNEL_IMAGE=$(abspath $(GO_FLANNEL_IMAGE)) cargo test -p e2e --test e2e -- --ignored --nocapture kube::upstream::
endif
ifeq ($(GO_FLANNEL_CNI),)
	@echo "test-interop: the CNI plugin is skipped, because GO_FLANNEL_CNI does not name Go flannel's"
else
	GO_FLANNEL_CNI=$(abspath $(GO_FLANNEL_CNI)) cargo test -p flannel-cni --test plugin -- --ignored differential
endif

test-images: ## Images as they are shipped, of both architectures: sizes, and the programs of arm64 under an emulator
	./e2e/setup.sh images
	./conf/image/build.sh amd64
	./conf/image/build.sh arm64
	$(CACHE)/qemu-user/usr/bin/qemu-aarch64-static -L target/images/arm64/root/flannel target/images/arm64/root/flannel/opt/bin/flanneld --version
	FLANNEL_TEST_CNI="$(CACHE)/qemu-user/usr/bin/qemu-aarch64-static $(CURDIR)/target/cni/arm64/flannel" cargo test -p flannel-cni --test plugin golden

test-vm: ## A stage of test-all: what needs WireGuard, IPIP or netem in the kernel, in a virtual machine with the distribution's kernel [ARGS=a part of a name]
	./e2e/setup.sh vm
	./e2e/run.py list
	./e2e/vm/test.sh 3600 vm $(ARGS)

FUZZ_TARGETS := lease net_conf subnet_env options datagram icmp vxlan tun probe wireguard
CARGO_FUZZ := RUSTC_BOOTSTRAP=1 $(CACHE)/tools/bin/cargo-fuzz

fuzz: ## Feed every parser of foreign input with damaged input [SECONDS=60]
	test -x $(CACHE)/tools/bin/cargo-fuzz || cargo install cargo-fuzz --version 0.13.2 --locked --root $(CACHE)/tools
	@# The corpus is one archive, because only fuzzing needs its many small files.
	test -d fuzz/corpus || tar -xzf fuzz/corpus.tar.gz -C fuzz
	for target in $(FUZZ_TARGETS); do \
	  $(CARGO_FUZZ) run --fuzz-dir fuzz $$target -- -max_total_time=$(SECONDS) -max_len=2048 || exit 1; \
	done

fuzz-corpus: ## Minimise and pack what `make fuzz` added to the corpus
	for target in $(FUZZ_TARGETS); do $(CARGO_FUZZ) cmin --fuzz-dir fuzz $$target || exit 1; done
	tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -c -C fuzz corpus | gzip -9n > fuzz/corpus.tar.gz

cni: ## The CNI plugin as one static program, target/cni/ARCH/flannel [ARCH=amd64|arm64]
	./e2e/setup.sh build
	./cni/build.sh $(ARCH)

install: ## Install the daemon, flannelctl, manual pages, completions, the systemd unit and examples [PREFIX=/usr/local DESTDIR=]
	./e2e/setup.sh build
	cargo build --release -p flanneld -p flannelctl -p flannel-lab
	install -D -m 755 target/release/flanneld $(DESTDIR)$(PREFIX)/bin/flanneld
	install -D -m 755 target/release/flannelctl $(DESTDIR)$(PREFIX)/bin/flannelctl
	install -D -m 755 target/release/flannel-lab $(DESTDIR)$(PREFIX)/bin/flannel-lab
	install -D -m 755 conf/mk-docker-opts.sh $(DESTDIR)$(PREFIX)/bin/mk-docker-opts.sh
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system $(DESTDIR)$(PREFIX)/share/flannel/net-conf
	sed 's|/usr/local/|$(PREFIX)/|g' conf/flanneld.service > $(DESTDIR)$(PREFIX)/lib/systemd/system/flanneld.service
	install -m 644 conf/net-conf/*.json $(DESTDIR)$(PREFIX)/share/flannel/net-conf/
	target/release/flannelctl man $(DESTDIR)$(PREFIX)/share/man/man8
	install -d $(addprefix $(DESTDIR)$(PREFIX)/share/,bash-completion/completions zsh/site-functions fish/vendor_completions.d)
	for program in flanneld flannelctl; do \
	  target/release/flannelctl completion bash $$program > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/$$program && \
	  target/release/flannelctl completion zsh $$program > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_$$program && \
	  target/release/flannelctl completion fish $$program > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/$$program.fish || exit 1; \
	done
	@# `make install` does not overwrite an operator's settings.
	test -e $(DESTDIR)/etc/default/flanneld || install -D -m 644 conf/default/flanneld $(DESTDIR)/etc/default/flanneld

clean: ## Remove what was built (downloads stay in ~/.cache/flannel-rs)
	cargo clean
