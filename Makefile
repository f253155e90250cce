# The commands people use. Each is one script; `make` alone lists them.
.PHONY: help try test lint mutants bench fuzz sim soak dist release images hil

help: ; @sed -n 's/^\([a-z]*\): ; @[^#]*## /  make \1\t/p' Makefile

try: ; @.ci/try ## a hub and three nodes on this machine: good configs, bad ones; as root a pod on each, and what it survives
test: ; @.ci/test ## everything within 30 minutes: lint, all tests, the programs, booted images (ONLY="lint agent" these parts, FULL=1 all there is)
lint: ; @.ci/lint ## format, clippy, shell scripts, dependencies, unit files, recipes
mutants: ; @.ci/mutants $(ARGS) ## changes in the decisions that no test notices; hours (ARGS=agent/core/src/config/judge.rs for one file)
bench: ; @.ci/bench ## what the agent and the hub cost: one table with the goal beside each figure, half an hour, as root
fuzz: ; @.ci/fuzz ## a minute of libFuzzer on everything a server, a client or a disk can hand a node or the hub (FUZZ_SECONDS=3600 an hour each)
sim: ; @.ci/sim ## simulation runs of a node, as many as fit into 45 seconds (SEEDS=5000000 for that many, FIRST=n from there on)
soak: ; @.ci/soak ## an hour of operation under bad links and hub outages: what grew, which node fell silent (SOAK_MINUTES=25)
dist: ; @cross/dist ## static programs and Debian packages for x86_64, aarch64 and armv7, in target/dist
release: ; @cross/release ## all that is published in one folder: programs, apt repository, container image, disk images, sums, signatures (RELEASE_FROM=target/dist without a build)
images: ; @.ci/images ## flashable disk images of every board in images/boards (BOARDS=x86_64-uefi for one), in target/images
hil: ; @KEDGE_MEASURE=1 .ci/hil $(STORIES) ## boots the x86_64 image in QEMU and runs the core stories (FULL=1 all, STORIES=update these, BOARDS=arm64-uefi another board)
