# The commands people use. Each is one script; `make` alone lists them.
.PHONY: help try test lint bench fuzz sim soak dist images hil

help: ; @sed -n 's/^\([a-z]*\): ; @[^#]*## /  make \1\t/p' Makefile

try: ; @.ci/try ## a hub and three nodes on this machine: a good config, bad ones, a crashing one
test: ; @.ci/test ## everything: lint, build, all tests, the release agent, booted images
lint: ; @.ci/lint ## format, clippy, licences, unit files, recipes
bench: ; @.ci/bench ## what the agent and the hub cost: one table with the goal beside each figure, a quarter of an hour
fuzz: ; @.ci/fuzz ## a minute of libFuzzer on everything a stranger or a disk can hand a node (FUZZ_SECONDS=3600 for an hour each)
sim: ; @.ci/sim ## simulated lives of a node: 100,000 or two minutes of them (SEEDS=5000000 for that many, FIRST=n from there on)
soak: ; @.ci/soak ## an hour of compressed life under bad links and a hub that comes and goes: what grew, who fell silent (SOAK_MINUTES=25)
dist: ; @cross/dist ## static programs and Debian packages for x86_64, aarch64 and armv7, in target/dist
images: ; @.ci/images ## flashable disk images of every board in images/boards (BOARDS=x86_64-uefi for one), in target/images
hil: ; @.ci/hil ## boots the x86_64 image in QEMU and tells the core stories on it (FULL=1 all of them, BOARDS=arm64-uefi on another board)
