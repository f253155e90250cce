//! A node in bad surroundings: clocks, cables, hubs, disks, memory.

use std::time::{Duration, Instant};

use super::chance::{Chance, number};
use super::ends::unit_says;
use crate::error::HilError;
use crate::machine::{HUB_IN_GUEST, MOVED_HUB_IN_GUEST, Start};
use crate::stage::{NODE, Stage, condition, patience, payload};

/// A time without network in which several heartbeats would have been due.
const OUTAGE: Duration = Duration::from_secs(30);
/// A long one, in seconds, unless `KEDGE_HIL_OUTAGE_SECS` sets another. An hour shows nothing more than 12
/// minutes: the agent's longest time constant is 10 minutes (a connection's idle time, and the longest delay
/// that a server may demand).
const LONG_OUTAGE_SECS: u64 = 720;
/// How often `flapping` pulls the cable and plugs it in again.
const FLAPS: u64 = 20;
/// Most blocks that one command in the guest overwrites: each takes a process, 0.1 s of a busy machine.
const BLOCKS_AT_ONCE: u32 = 200;

pub(super) fn clock(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let uid = super::config::good(stage)?;
    stage.cut()?;
    stage.power_on(&Start { clock: Some("1970-01-01T00:00:00".into()), ..Start::default() })?;
    stage.says_it_runs(&format!("using current (UID: {uid})"))?;
    let date = stage.guest("date -u +%F")?;
    stage.say(&format!("booted with a clock of 1970, the system says {date}: edge-good runs"));
    // systemd-timesyncd never moves its saved time back, so the latest date comes last
    for clock in ["2037-06-01", "2099-06-01"] {
        stage.comes_back_as(&Start { clock: Some(format!("{clock}T00:00:00")), ..Start::default() })?;
        stage.says_it_runs(&format!("using current (UID: {uid})"))?;
        let date = stage.guest("date -u +%F")?;
        stage.say(&format!("booted with a clock of {clock}, the system says {date}: edge-good runs"));
        // the hub's certificates are valid that long
        if clock.starts_with("2037") {
            stage.expect("the year", date.split('-').next(), Some("2037"))?;
            stage.renews()?;
        }
    }
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
    for (seconds, words) in [
        (now, "set right"),
        (now + 315_360_000, "ten years ahead"),
        (now - 31_536_000, "a year back"),
        (now, "set right"),
    ] {
        let process = stage.running()?;
        stage.guest(&format!("date -u -s @{seconds}"))?;
        std::thread::sleep(Duration::from_secs(20));
        let same = stage.running()?;
        stage.expect("the agent's process", same, process)?;
        let last = stage.guest("journalctl -b -u kedge -o cat --no-pager -n 1")?;
        stage.say(&format!("clock {words}: the same process goes on; its last log line: {last}"));
    }
    stage.renews()?;
    stage.runs(&uid)
}

pub(super) fn network(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let uid = super::config::good(stage)?;
    stage.cut()?;
    stage.power_on(&Start { unplugged: true, ..Start::default() })?;
    stage.says_it_runs(&format!("using current (UID: {uid})"))?;
    let state = stage.guest("systemctl is-system-running --wait || true")?;
    stage.expect("the system without network", state.as_str(), "running")?;
    stage.say("booted without network: the system is up, edge-good runs");
    stage.machine.plug(true)?;
    stage.renews()?;
    stage.say("plugged in: renews");
    for _ in 0..5 {
        stage.machine.plug(false)?;
        std::thread::sleep(Duration::from_secs(2));
        stage.machine.plug(true)?;
        std::thread::sleep(Duration::from_secs(2));
    }
    let process = stage.running()?;
    stage.machine.plug(false)?;
    std::thread::sleep(OUTAGE);
    stage.machine.plug(true)?;
    stage.renews()?;
    let same = stage.running()?;
    stage.expect("the agent's process", same, process)?;
    stage.runs(&uid)?;
    stage.say("after five flaps and an outage: the same process renews");
    stage.guest("for n in $(seq 8); do systemctl kill --signal=KILL systemd-networkd; sleep 0.2; done")?;
    stage.wait("systemd-networkd, which was killed again and again", patience(), |stage| {
        let state = stage.guest("systemctl show -P ActiveState systemd-networkd")?;
        Ok(if state == "active" { Ok(()) } else { Err(state) })
    })?;
    stage.say("systemd starts the network's own service again, however often it ends");
    super::config::taken_back(stage)
}

pub(super) fn long_outage(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let good = super::config::good(stage)?;
    // A config that has had contact once is promoted by time alone, so the cable is pulled before the agent
    // starts under it. To adopt a config the agent would replace itself in its process, but not if its
    // program was replaced, as after an upgrade.
    unit_says(stage, "Restart=no\\n")?;
    stage.guest("cp /usr/bin/kedge /run/upgraded && mount --bind /run/upgraded /usr/bin/kedge")?;
    let next = stage.push("edge-next", &payload("90s", 2, ""))?;
    stage.wait("the end of the agent that takes edge-next", patience(), |stage| {
        let state = stage.guest("systemctl show -P ActiveState kedge")?;
        Ok(if state == "inactive" { Ok(()) } else { Err(state) })
    })?;
    stage.machine.plug(false)?;
    let pulled = Instant::now();
    unit_says(stage, "")?;
    stage.guest("systemctl start kedge")?;
    stage.says_it_runs(&format!("using current (UID: {next})"))?;
    let outage = Duration::from_secs(number("KEDGE_HIL_OUTAGE_SECS").unwrap_or(LONG_OUTAGE_SECS));
    stage.say(&format!("edge-next begins its trial of 90 s, and the cable is out for {outage:?}"));
    stage.says_it_runs(&format!("using last known good: (UID: {good})"))?;
    stage.say(&format!(
        "its trial is over without contact after {} s: edge-good runs",
        pulled.elapsed().as_secs()
    ));
    let process = stage.running()?;
    std::thread::sleep(outage.saturating_sub(pulled.elapsed()));
    let same = stage.running()?;
    stage.expect("the agent's process", same, process)?;
    stage.machine.plug(true)?;
    stage.renews()?;
    stage.runs(&next)?;
    stage.promotes(&next)?;
    stage.say("plugged in: renews, edge-next is tried once more and promoted: an outage condemns nothing");
    Ok(())
}

pub(super) fn flapping(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let mut chance = Chance::from_environment(stage);
    super::config::good(stage)?;
    let process = stage.running()?;
    let mut next = String::new();
    for flap in 0..FLAPS {
        if flap == FLAPS / 2 {
            next = stage.push("edge-next", &payload("2s", 2, ""))?;
        }
        for is_in in [false, true] {
            stage.machine.plug(is_in)?;
            std::thread::sleep(Duration::from_millis(200 + chance.below(6_000)));
        }
    }
    stage.say(&format!(
        "the cable was pulled {FLAPS} times for up to 6 s, and edge-next was assigned meanwhile"
    ));
    stage.renews()?;
    stage.runs(&next)?;
    stage.promotes(&next)?;
    stage.ready()?;
    // to adopt a config it replaces itself in its process
    let same = stage.running()?;
    stage.expect("the agent's process", same, process)?;
    stage.say("it renews, is Ready, and has adopted edge-next; the agent's process is the same");
    Ok(())
}

/// Waits until the API shows the node with the first address and without the second.
fn has_address(stage: &mut Stage<'_>, address: &str, not: &str) -> Result<(), HilError> {
    stage.wait(&format!("the node's address {address}"), patience(), |stage| {
        let addresses = stage.node()?["status"]["addresses"].to_string();
        let has = |address: &str| addresses.contains(&format!("\"{address}\""));
        Ok(if has(address) && !has(not) { Ok(()) } else { Err(addresses) })
    })
}

pub(super) fn address(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let uid = super::config::good(stage)?;
    has_address(stage, "10.0.2.15", "10.0.2.77")?;
    let process = stage.running()?;
    // with another prefix length, because otherwise removing the old address would remove this one as its
    // secondary
    stage.guest("ip address add 10.0.2.77/16 dev eth0 && ip address del 10.0.2.15/24 dev eth0")?;
    stage.renews()?;
    has_address(stage, "10.0.2.77", "10.0.2.15")?;
    let same = stage.running()?;
    stage.expect("the agent's process", same, process)?;
    stage.say("another address while it runs: the same process renews, and the Node shows it");
    stage.comes_back_as(&Start { address: Some("10.0.2.50"), ..Start::default() })?;
    stage.renews()?;
    has_address(stage, "10.0.2.50", "10.0.2.77")?;
    stage.runs(&uid)?;
    stage.say("another address by DHCP at the next boot: the same");
    Ok(())
}

pub(super) fn moved_hub(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let uid = super::config::good(stage)?;
    let moved = Start { hub_moved: true, ..Start::default() };
    stage.comes_back_as(&moved)?;
    stage.says_it_runs(&format!("using current (UID: {uid})"))?;
    let process = stage.running()?;
    let before = stage.renewed()?;
    std::thread::sleep(OUTAGE);
    let after = stage.renewed()?;
    stage.expect("renewals at the old address", after, before)?;
    stage.say("the hub is elsewhere: edge-good runs without it");
    stage.guest(&format!(
        "cd /etc/kedge && sed 's/{HUB_IN_GUEST}/{MOVED_HUB_IN_GUEST}/' kubeconfig >kubeconfig.new && \
         ! cmp -s kubeconfig kubeconfig.new && mv kubeconfig.new kubeconfig"
    ))?;
    stage.renews()?;
    let same = stage.running()?;
    stage.expect("the agent's process", same, process)?;
    stage.say("the new address was written into its kubeconfig: the same process renews there");
    stage.comes_back_as(&moved)?;
    stage.renews()?;
    stage.runs(&uid)?;
    stage.say("and after a power cut: the kubeconfig handed over at first does not replace it");
    if stage.machine.is_handed_at_each_start() {
        let kubeconfig = stage.hub.node_kubeconfig(NODE)?.replace(stage.hub.address(), HUB_IN_GUEST);
        stage.machine.hand("kedge.kubeconfig", &kubeconfig)?;
        stage.power_cut()?;
        stage.renews()?;
        stage.runs(&uid)?;
        stage.say("the hub moved back and a new kubeconfig was handed over at boot: it renews there");
    }
    Ok(())
}

/// The address that `own-network` gives the node; DHCP would give it 10.0.2.15.
const OWN_ADDRESS: &str = "10.0.2.77";

/// Puts the settings of its network onto the node's EFI partition.
fn leaves_own_network(stage: &mut Stage<'_>) -> Result<(), HilError> {
    stage.guest(&format!(
        "printf '[Match]\\nName=eth*\\n[Network]\\nAddress={OWN_ADDRESS}/24\\nGateway=10.0.2.2\\n' \
         >/efi/kedge/10-site.network && sync"
    ))?;
    Ok(())
}

pub(super) fn own_network(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let uid = super::config::good(stage)?;
    leaves_own_network(stage)?;
    stage.reboot()?;
    stage.renews()?;
    let addresses = stage.guest("ip -4 -o address show eth0 | sed 's/.* inet \\([0-9.]*\\).*/\\1/'")?;
    stage.expect("the node's addresses", addresses.as_str(), OWN_ADDRESS)?;
    stage.runs(&uid)?;
    stage.say("the node has the address that a file on its EFI partition gives it, and renews");
    Ok(())
}

/// Simulates a disk that udev has not examined when the boot has waited for 90 s: the examination of present
/// devices is masked for one boot, and the story triggers it later. The drivers of console and network are
/// loaded explicitly.
pub(super) fn late_efi(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let uid = super::config::good(stage)?;
    leaves_own_network(stage)?;
    // like a physical board that is switched on for the first time
    stage.machine.hand_nothing();
    stage.guest(
        "systemctl stop kedge; cp /etc/kedge/kubeconfig /etc/kedge/node-name /efi/kedge && \
         (cd /etc/kedge && rm -r $(ls -A)) && sed -i '/^options /s/$/ systemd.mask=systemd-udev-trigger.service \
         modules_load=virtio_console,virtio_net/' /efi/loader/entries/kedge-a.conf && sync",
    )?;
    stage.comes_back_as(&Start::default())?;
    let found = stage
        .guest("findmnt -no SOURCE /efi; ls /etc/kedge | grep -v config.d; cat /proc/sys/kernel/hostname")?;
    stage.expect("EFI partition, identity and host name", found.as_str(), "localhost")?;
    let process = stage.running()?;
    stage
        .say("the agent runs without an EFI partition, which udev has not found, and so without an identity");
    stage.guest(
        "for what in subsystems devices; do udevadm trigger --type=$what --action=add || exit 1; done",
    )?;
    stage.wait("the EFI partition, mounted late", patience(), |stage| {
        let (code, found) = stage.ask("findmnt -no SOURCE /efi")?;
        Ok(if code == 0 { Ok(()) } else { Err(found) })
    })?;
    stage.restarted(process)?;
    stage.renews()?;
    stage.ready()?;
    has_address(stage, OWN_ADDRESS, "10.0.2.15")?;
    stage.runs(&uid)?;
    stage.say("it was found later: mounted, identity and network were taken from it, and the node is Ready");
    Ok(())
}

pub(super) fn hub(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let uid = super::config::good(stage)?;
    let process = stage.running()?;
    stage.hub.kill();
    std::thread::sleep(OUTAGE);
    let same = stage.running()?;
    stage.expect("the agent's process", same, process)?;
    stage.hub.start_again()?;
    stage.renews()?;
    stage.ready()?;
    stage.runs(&uid)?;
    stage.say("the hub was killed and came back: the node renews and is Ready");
    Ok(())
}

pub(super) fn state_full(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let good = super::config::good(stage)?;
    stage.guest("head -c 1G /dev/zero >/var/tmp/full 2>/dev/null; ! head -c 65536 /dev/zero >/var/tmp/full-probe 2>/dev/null")?;
    let uid = stage.push("edge-next", &payload("2s", 2, "nodeStatusReportFrequency: 2m\n"))?;
    stage.wait("ConfigOK Unknown, or the new config after all", patience(), |stage| {
        let found = condition(&stage.node()?, "ConfigOK");
        let adopted = found.1 == format!("using current (UID: {uid})");
        Ok(if found.0 == "Unknown" || adopted { Ok(()) } else { Err(format!("{found:?}")) })
    })?;
    let found = condition(&stage.node()?, "ConfigOK");
    stage.say(&format!("disk full (edge-good is {good}): {found:?}"));
    // the config that it reports is the one on the disk: it runs the same one after a restart
    let runs = format!("using current (UID: {})", if found.0 == "Unknown" { &good } else { &uid });
    stage.expect("what runs on the full disk", found.1, runs.clone())?;
    stage.renews()?;
    let process = stage.running()?;
    stage.guest(&format!("kill -KILL {process}"))?;
    stage.restarted(process)?;
    stage.says_it_runs(&runs)?;
    stage.renews()?;
    stage.say("killed on the full disk: it starts, runs the same and renews");
    stage.guest("rm -f /var/tmp/full*")?;
    stage.runs(&uid)?;
    stage.say("with room again: edge-next runs");
    Ok(())
}

pub(super) fn state_read_only(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let good = super::config::good(stage)?;
    stage.guest("systemctl stop systemd-journald.socket systemd-journald-dev-log.socket systemd-journald-audit.socket systemd-journald; \
                 echo u >/proc/sysrq-trigger; sleep 2; ! touch /var/lib/kedge/x")?;
    stage.push("edge-next", &payload("2s", 2, ""))?;
    stage.wait("ConfigOK Unknown", patience(), |stage| {
        let found = condition(&stage.node()?, "ConfigOK");
        Ok(if found.0 == "Unknown" { Ok(()) } else { Err(format!("{found:?}")) })
    })?;
    let found = condition(&stage.node()?, "ConfigOK");
    stage.expect("what runs", found.1.clone(), format!("using current (UID: {good})"))?;
    stage.say(&format!("read-only: {found:?}"));
    let process = stage.running()?;
    stage.guest(&format!("kill -KILL {process}"))?;
    stage.restarted(process)?;
    stage.renews()?;
    stage.say("killed on the read-only disk: it starts and renews");
    Ok(())
}

/// Cuts the power after damage to the disk, and waits until the node boots by itself, has its identity,
/// renews, and runs the config that the hub assigns. Returns the log lines about the damage.
fn comes_back_from_damage(stage: &mut Stage<'_>, uid: &str) -> Result<String, HilError> {
    stage.power_cut()?;
    stage.renews()?;
    stage.ready()?;
    let log = stage.guest(
        "dmesg | grep kedge-image; journalctl -b -u kedge-provision -o cat | grep provision: || true",
    )?;
    let found = condition(&stage.node()?, "ConfigOK");
    stage.say(&format!("back and Ready; ConfigOK {found:?}"));
    for line in log.lines().take(8) {
        stage.say(line);
    }
    // the hub provides any lost parts again
    stage.runs(uid)?;
    Ok(log)
}

pub(super) fn state_wiped(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let uid = super::config::good(stage)?;
    // the second one flushes the disk, because the first does not at the partition's end; sync would write
    // the file system back
    stage.guest(
        "d=/dev/disk/by-partlabel/state; dd if=/dev/zero of=$d bs=1M oflag=direct conv=notrunc 2>/dev/null; \
         dd if=/dev/zero of=$d bs=4096 count=1 oflag=direct conv=notrunc,fsync",
    )?;
    comes_back_from_damage(stage, &uid)?;
    stage.say("all of the state partition was zeroed: the identity was handed over again, and edge-good came from the hub");
    Ok(())
}

/// Overwrites the blocks of the state partition whose numbers the command prints, and resets at once, because
/// the kernel would write its own copies over the damage. In the command `$d` is the partition and `$s` the
/// size of a block.
fn overwritten(stage: &mut Stage<'_>, what: &str, blocks: &str) -> Result<(), HilError> {
    let each = "while read b; do dd if=/dev/urandom of=$d bs=$s seek=$b count=1 oflag=direct conv=notrunc || exit 1; done";
    stage.machine.run_last(&format!(
        "d=/dev/disk/by-partlabel/state; s=$(dumpe2fs -h $d | sed -n 's/^Block size: *//p'); sync; {blocks} >/run/blocks && \
         [ -s /run/blocks ] && {each} </run/blocks && echo b >/proc/sysrq-trigger"
    ))?;
    stage.machine.wait_reset(patience())?;
    stage.say(&format!("{what} overwritten"));
    Ok(())
}

pub(super) fn state_corrupted(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let uid = super::config::good(stage)?;
    // first, while all copies of the superblock are intact
    overwritten(stage, "the first 64 KiB", "seq 0 $((65536 / s - 1))")?;
    let log = comes_back_from_damage(stage, &uid)?;
    let is_taken = log.contains("a copy of it was taken");
    stage.expect(&format!("a copy of the superblock was taken: {log}"), is_taken, true)?;
    overwritten(
        stage,
        "all block bitmaps",
        "dumpe2fs $d | sed -n 's/.*Block bitmap at \\([0-9]*\\).*/\\1/p'",
    )?;
    comes_back_from_damage(stage, &uid)?;
    // the file system must not have become read-only when the kernel met the first damage
    stage.guest("touch /var/lib/kedge/x && sync /var/lib/kedge/x && rm /var/lib/kedge/x")?;
    overwritten(
        stage,
        "the contents of kubeconfig, node-name and machine-id",
        "for f in kedge/kubeconfig kedge/node-name machine-id; do debugfs -R \"blocks /etc/$f\" $d; done | tr ' ' '\\n' | sed '/^$/d'",
    )?;
    comes_back_from_damage(stage, &uid)?;
    let damaged = stage.guest("cd /etc/kedge && ls *.damaged")?;
    stage.expect(
        "set aside",
        damaged.split_whitespace().collect::<Vec<_>>(),
        vec!["kubeconfig.damaged", "node-name.damaged"],
    )?;
    for blocks in [20, 200, 2000] {
        let mut left: u32 = blocks;
        while left > 0 {
            let now = left.min(BLOCKS_AT_ONCE);
            left -= now;
            stage.guest(&format!(
                "d=/dev/disk/by-partlabel/state; n=$(($(blockdev --getsize64 $d) / 4096 - 1)); \
                 shuf -i 0-$n -n {now} | while read b; do dd if=/dev/urandom of=$d bs=4096 count=1 seek=$b oflag=direct conv=notrunc,fsync 2>/dev/null || exit 1; done"
            ))?;
        }
        stage.say(&format!("{blocks} random blocks overwritten"));
        comes_back_from_damage(stage, &uid)?;
    }
    stage.guest(
        "systemctl stop kedge; rm -rf /var/lib/kedge && echo x >/var/lib/kedge && sync /var/lib/kedge /var/lib",
    )?;
    stage.say("the state directory became a file");
    comes_back_from_damage(stage, &uid)?;
    Ok(())
}

pub(super) fn state_displaced(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let uid = super::config::good(stage)?;
    stage.guest(
        "systemctl stop kedge; cd /var/lib/kedge; for d in containers images volumes; do rm -rf $d; echo x >$d; done; sync",
    )?;
    comes_back_from_damage(stage, &uid)?;
    stage.say(
        "files in place of directories below the state directory: set aside, and the configuration stayed",
    );
    stage.guest("systemctl stop kedge; rm -rf /var/lib/kedge && ln -s nowhere /var/lib/kedge; sync")?;
    comes_back_from_damage(stage, &uid)?;
    let aside = stage.guest("kedge config history")?;
    let expect = "set aside: /var/lib/kedge.corrupt-1";
    stage.expect(&format!("{expect}: {aside}"), aside.contains(expect), true)?;
    stage.say(
        "the state directory became a link that leads nowhere: set aside, and edge-good came from the hub",
    );
    Ok(())
}

pub(super) fn small(stage: &mut Stage<'_>) -> Result<(), HilError> {
    stage.cut()?;
    // the firmware alone needs more than this, so QEMU starts the kernel directly
    let start = Start { is_small: true, direct: true, ..Start::default() };
    let mib = stage.machine.memory_mib(&start);
    stage.power_on(&start)?;
    stage.renews()?;
    let memory = stage.guest("grep -E 'MemTotal|MemAvailable' /proc/meminfo")?;
    let memory = memory.split_whitespace().collect::<Vec<_>>().join(" ");
    stage.say(&format!("{mib} MiB: the agent renews; {memory}"));
    let state = stage.guest("systemctl is-system-running --wait || true")?;
    let failed = stage.guest("systemctl --failed --no-legend --plain")?;
    stage.expect(&format!("the system's state, failed units: {failed:?}"), state.as_str(), "running")
}

pub(super) fn sticks(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let uid = super::config::good(stage)?;
    let sticks = vec![
        stage.machine.stick("flashed", None)?,
        stage.machine.stick("labelled", Some("5f8b1e0c-7d0f-4b41-9c56-0c5a0f3f0e11"))?,
    ];
    // like a physical board, which can get an identity only from a file on the EFI partition
    stage.machine.hand_nothing();
    stage.comes_back_as(&Start { sticks, ..Start::default() })?;
    stage.wait("both sticks", patience(), |stage| {
        let disks = stage.guest("ls /sys/block")?;
        let count = disks.split_whitespace().filter(|disk| disk.starts_with("sd")).count();
        Ok(if count == 2 { Ok(()) } else { Err(disks) })
    })?;
    // a device that appears late now has the names of the machine's own
    let mounts = stage.guest(
        "udevadm settle; for at in / /efi /var; do findmnt -rno SOURCE $at; done | tr '\\n' ' '; readlink -f /dev/kedge/esp",
    )?;
    stage.expect(
        "mounted on /, /efi and /var, and the link",
        mounts.as_str(),
        "/dev/vda2 /dev/vda1 /dev/vda4 /dev/vda1",
    )?;
    let name = stage.guest(
        "for file in /etc/kedge/node-name /proc/sys/kernel/hostname; do echo $(cat $file); done | sort -u",
    )?;
    stage.expect("node name and host name", name.as_str(), NODE)?;
    stage.renews()?;
    stage.runs(&uid)?;
    stage.say("two sticks with the labels of its partitions, one of them flashed with its image, and both with an identity: nothing of them was used");
    Ok(())
}
