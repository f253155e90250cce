# Installs the static agent that `make dist` built, and its unit: no Rust in the layer, the bytes are the released ones.
# KEDGE_DIST is the folder target/dist of a checkout, or of a release.
SUMMARY = "Node agent for edge devices that speaks the Kubernetes API"
LICENSE = "Apache-2.0 & MIT & BSD-3-Clause & ISC & Unicode-3.0 & Zlib"
LIC_FILES_CHKSUM = "file://${COMMON_LICENSE_DIR}/Apache-2.0;md5=89aea4e17d99a7cacdbeed46a0096b10"

KEDGE_DIST ?= ""
KEDGE_TARGET:x86-64 = "x86_64"
KEDGE_TARGET:aarch64 = "aarch64"
KEDGE_TARGET:arm = "armv7"
COMPATIBLE_HOST = "(x86_64|aarch64|arm).*-linux.*"

inherit systemd features_check
REQUIRED_DISTRO_FEATURES = "systemd"
SYSTEMD_SERVICE:${PN} = "kedge.service"

# built, stripped and static already
INSANE_SKIP:${PN} += "already-stripped ldflags"
INHIBIT_PACKAGE_STRIP = "1"
do_configure[noexec] = "1"
do_compile[noexec] = "1"

python () {
    if not d.getVar("KEDGE_DIST"):
        raise bb.parse.SkipRecipe("set KEDGE_DIST to the folder that holds x86_64/kedge, aarch64/kedge and armv7/kedge")
    features = (d.getVar("TUNE_FEATURES") or "").split()
    if d.getVar("TARGET_ARCH") == "arm" and not any(feature.startswith(("armv7", "armv8")) for feature in features):
        raise bb.parse.SkipRecipe("the program for 32 bits is for ARMv7-A and newer")
}

do_install() {
    install -D -m 0755 ${KEDGE_DIST}/${KEDGE_TARGET}/kedge ${D}${bindir}/kedge
    install -D -m 0644 ${KEDGE_DIST}/${KEDGE_TARGET}/kedge.service ${D}${systemd_system_unitdir}/kedge.service
    install -D -m 0644 ${KEDGE_DIST}/${KEDGE_TARGET}/kedge.notices ${D}${docdir}/kedge/kedge.notices
    install -d ${D}${sysconfdir}/kedge/config.d
}

do_install[file-checksums] += "${KEDGE_DIST}/${KEDGE_TARGET}/kedge:True"
do_install[file-checksums] += "${KEDGE_DIST}/${KEDGE_TARGET}/kedge.service:True ${KEDGE_DIST}/${KEDGE_TARGET}/kedge.notices:True"
FILES:${PN} += "${systemd_system_unitdir}/kedge.service ${sysconfdir}/kedge"
RRECOMMENDS:${PN} = "ca-certificates"
# crun is in meta-virtualization, and a build without that layer would end: nothing provides what is recommended
RRECOMMENDS:${PN} += "${@bb.utils.contains('BBFILE_COLLECTIONS', 'virtualization-layer', 'crun', '', d)}"
