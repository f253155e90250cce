################################################################################
#
# kedge
#
################################################################################

# A folder of this machine, not a download: what `make dist` left there.
KEDGE_VERSION = 0.1.0
KEDGE_SITE = $(call qstrip,$(BR2_PACKAGE_KEDGE_DIST))
KEDGE_SITE_METHOD = local

ifeq ($(BR2_x86_64),y)
KEDGE_TARGET = x86_64
else ifeq ($(BR2_aarch64),y)
KEDGE_TARGET = aarch64
else
KEDGE_TARGET = armv7
endif

# the program's own, and beside it those of what it is made of
KEDGE_LICENSE = Apache-2.0, MIT, BSD-3-Clause, ISC, Unicode-3.0, Zlib
KEDGE_LICENSE_FILES = $(KEDGE_TARGET)/kedge.notices

define KEDGE_INSTALL_TARGET_CMDS
	$(INSTALL) -D -m 0755 $(@D)/$(KEDGE_TARGET)/kedge $(TARGET_DIR)/usr/bin/kedge
	mkdir -p $(TARGET_DIR)/etc/kedge/config.d
endef

define KEDGE_INSTALL_INIT_SYSTEMD
	$(INSTALL) -D -m 0644 $(@D)/$(KEDGE_TARGET)/kedge.service \
		$(TARGET_DIR)/usr/lib/systemd/system/kedge.service
endef

$(eval $(generic-package))
