# The commands people use. Each is one script; `make` alone lists them.
.PHONY: help try test lint

help: ; @sed -n 's/^\([a-z]*\): ; @\.ci[^#]*## /  make \1\t/p' Makefile

try: ; @.ci/try ## a hub and three nodes on this machine: a good config, bad ones, a crashing one
test: ; @.ci/test ## everything: lint, build, all tests, the release agent
lint: ; @.ci/lint ## format, clippy, licences, unit files
