//! Host facts below /proc, /sys and /etc, as an unknown board with unknown firmware may present them.

use crate::Target;
use crate::input::{joined, sections};
use kedge_platform::HostFacts;
use kedge_platform::exit::{PANIC_RECORDS_LIMIT, ResetTraces};
use kedge_platform::linux::{LinuxHost, LinuxTraces, Roots};
use kedge_rig::Scratch;
use std::cell::OnceCell;
use std::path::Path;

pub(crate) const TARGET: Target =
    Target { name: "host", run, seeds, words: WORDS, longest_bytes: 2048, mutations: 400 };

/// Longest fact, because it becomes part of a NodeStatus.
const FACT_BYTES: usize = 16 * 1024;

/// The files, in the order of the sections.
const FILES: [&str; 12] = [
    "proc/meminfo",
    "proc/loadavg",
    "proc/net/route",
    "proc/net/ipv6_route",
    "proc/sys/kernel/random/boot_id",
    "proc/sys/kernel/osrelease",
    "proc/sys/kernel/pid_max",
    "etc/os-release",
    "etc/machine-id",
    "sys/class/dmi/id/product_uuid",
    "sys/class/watchdog/watchdog0/bootstatus",
    "sys/fs/pstore/dmesg-efi-1",
];

const WORDS: &[&str] = &[
    "MemTotal:",
    "MemAvailable:",
    " kB\n",
    "PRETTY_NAME=",
    "\"",
    "'",
    "\\",
    "uninitialized",
    "18446744073709551615",
    "0x20",
    "00000000",
    "eth0\t",
    "Panic#1 Part1\n",
    "Oops#1 Part1\n",
    "1/234 567",
    "\u{1e}",
    "\n",
    "\t",
    "-1",
];

fn seeds() -> Vec<Vec<u8>> {
    [
        joined(&[
            "MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable:    8192 kB\nCached: 99 kB\nInactive(file): 9 kB\nAnonPages: 9 kB\n",
            "0.00 0.01 0.05 1/234 567\n",
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\neth0\t00000000\t0100A8C0\t0003\t0\t0\t100\t00000000\n",
            "00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00450003     eth0\n",
            "6f0c1f5e-1111-2222-3333-444455556666\n",
            "6.1.0-18-amd64\n",
            "4194304\n",
            "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n",
            "0123456789abcdef0123456789abcdef\n",
            "4C4C4544-0042-4410-8052-B4C04F564433\n",
            "32\n",
            "Panic#2 Part1\nsome lines\n",
        ]),
        joined(&["", "", "", "", "", "", "", "PRETTY_NAME='a\\'b'", "uninitialized", "00000000-0000", "0x20", "Oops#1"]),
    ]
    .to_vec()
}

thread_local! {
    static MACHINE: OnceCell<Scratch> = const { OnceCell::new() };
}

fn run(data: &[u8]) {
    MACHINE.with(|machine| {
        let root = machine.get_or_init(|| {
            let made = crate::scratch("machine");
            for file in FILES {
                let folder = made.path().join(file).parent().map(Path::to_owned).unwrap_or_default();
                std::fs::create_dir_all(folder).expect("the scratch folder is ours");
            }
            made
        });
        let root = root.path();
        for (file, content) in FILES.iter().zip(sections::<12>(data)) {
            std::fs::write(root.join(file), content).expect("the folder is there");
        }
        look(root);
    });
}

fn look(root: &Path) {
    let roots = Roots::under(root);
    let host = LinuxHost::new(roots.clone(), root);
    let identity = host.identity();
    assert_eq!(identity, host.identity(), "the same machine twice");
    for fact in [&identity.boot_id, &identity.system_uuid, &identity.kernel_release, &identity.os_image] {
        assert!(fact.len() <= 3 * FACT_BYTES, "a fact of {} bytes", fact.len());
    }
    assert!(identity.machine_id.is_empty() || identity.machine_id.len() == 32, "{:?}", identity.machine_id);
    host.addresses();
    host.capacity();
    host.usage();
    let traces = LinuxTraces::new(roots);
    traces.watchdog_reset();
    assert!(traces.panic_records().len() <= PANIC_RECORDS_LIMIT);
}
