//! One machine in QEMU: power, disks, network, monitor, shell, serial log.
//!
//! Owns the QEMU process and the files of one run directory. Always holds: QEMU dies with this program (also
//! by SIGKILL); the guest reaches two addresses, the hub's and that of a registry, each through a relay, and
//! nothing else; the serial log grows over all starts. The emulated clock of a machine started from a
//! snapshot continues from the snapshot's time. Cutting the power loses a random part of the guest's
//! unflushed writes: while the machine is on, its disk stays as it was at the start, and a log has all writes
//! since.

use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kedge_rig::logged_disk::{Fate, Recording, Unflushed, apply_log};
use serde_json::{Value, json};

use crate::board::{Board, Credentials};
use crate::error::HilError;
use crate::qmp::Qmp;
use crate::relay;
use crate::shell::Shell;

/// The hub's address in the guest.
pub(crate) const HUB_IN_GUEST: &str = "10.0.2.100:6443";
/// The hub's address in the guest after it has moved.
pub(crate) const MOVED_HUB_IN_GUEST: &str = "10.0.2.101:6443";
/// The registry's address in the guest, for a story that has one.
pub(crate) const REGISTRY_IN_GUEST: &str = "10.0.2.102:5000";
/// How much larger than the image the disk is, as real disks are; it is little, because stories fill the
/// state partition.
const LARGER_BYTES: u64 = 64 << 20;
/// The disk, the firmware's variables, and the additional files of [`Machine::save`]: memory and devices.
const DISK: &str = "disk.raw";
const VARIABLES: &str = "variables.qcow2";
const SAVED: &str = "saved";
/// Longest wait until the memory is written or read: 256 MiB.
const SAVE_LIMIT: Duration = Duration::from_secs(300);
/// Longest wait for QEMU's sockets.
const SOCKETS_LIMIT: Duration = Duration::from_secs(60);

/// The way to start the machine.
#[derive(Clone, Default)]
pub(crate) struct Start {
    /// Continue from the snapshot.
    pub(crate) from_snapshot: bool,
    /// The machine's clock at the start, in the form of `-rtc base=`.
    pub(crate) clock: Option<String>,
    /// Use the board's small memory instead of its usual one.
    pub(crate) is_small: bool,
    /// Start without a network cable.
    pub(crate) unplugged: bool,
    /// Start the kernel directly, without firmware and boot loader.
    pub(crate) direct: bool,
    /// The hub is at [`MOVED_HUB_IN_GUEST`] and no longer at its old address.
    pub(crate) hub_moved: bool,
    /// The address that DHCP gives the machine; `None`: QEMU's usual one, 10.0.2.15.
    pub(crate) address: Option<&'static str>,
    /// Disks plugged in by USB, see [`Machine::stick`].
    pub(crate) sticks: Vec<PathBuf>,
}

/// A machine and its files.
pub(crate) struct Machine {
    board: Board,
    dir: PathBuf,
    image: PathBuf,
    identity: Vec<(&'static str, PathBuf)>,
    files: Vec<PathBuf>,
    hub_address: String,
    registry_port: u16,
    /// The files of a [`Machine::save`], of this machine or another one.
    saved: Option<PathBuf>,
    /// The way of its last start.
    started: Start,
    is_plugged: bool,
    /// The recorded writes before the last renewal of its QEMU, if they were requested.
    recordings: Option<Vec<Recording>>,
    process: Option<Child>,
    monitor: Option<Qmp>,
    shell: Option<Shell>,
}

impl Machine {
    /// A machine of this board in `dir`, without the image folder's disk yet.
    pub(crate) fn new(
        board: &Board,
        dir: &Path,
        image: &Path,
        hub_address: &str,
        registry_port: u16,
    ) -> Result<Machine, HilError> {
        std::fs::create_dir_all(dir).map_err(HilError::io("create directory", dir))?;
        Ok(Machine {
            board: board.clone(),
            dir: dir.to_owned(),
            image: image.to_owned(),
            identity: Vec::new(),
            files: Vec::new(),
            hub_address: hub_address.to_owned(),
            registry_port,
            saved: None,
            started: Start::default(),
            is_plugged: true,
            recordings: None,
            process: None,
            monitor: None,
            shell: None,
        })
    }

    /// Gives the machine a credential, from a file.
    pub(crate) fn hand(&mut self, name: &'static str, content: &str) -> Result<(), HilError> {
        let path = self.dir.join(name);
        std::fs::write(&path, content).map_err(HilError::io("write", &path))?;
        self.identity.retain(|(old, _)| *old != name);
        self.identity.push((name, path));
        Ok(())
    }

    /// Gives no credential at the next start.
    pub(crate) fn hand_nothing(&mut self) {
        self.identity.clear();
    }

    /// A stick that was flashed with this machine's image and holds another identity. Its partitions have the
    /// labels of the machine's own, and also their GUIDs, except for a new one of the EFI partition if
    /// `efi_guid` names it.
    pub(crate) fn stick(&self, name: &str, efi_guid: Option<&str>) -> Result<PathBuf, HilError> {
        let (image, stick) = (self.image.join("disk.img"), self.dir.join(name));
        copy_sparse(&image, &stick)?;
        if let Some(guid) = efi_guid {
            tool("sfdisk", &["-q", "--part-uuid", plain(&stick)?, "1", guid].map(OsStr::new))?;
        }
        for (file, content) in [("kubeconfig", "clusters: of a stick\n"), ("node-name", "stick\n")] {
            let path = self.dir.join(format!("{name}-{file}"));
            std::fs::write(&path, content).map_err(HilError::io("write", &path))?;
            put_on_efi(&stick, &path, file)?;
        }
        Ok(stick)
    }

    /// True if a credential given later reaches the guest at its next start.
    pub(crate) fn is_handed_at_each_start(&self) -> bool {
        self.board.credentials == Credentials::Smbios
    }

    /// True if the board keeps the record of a panic over a reset.
    pub(crate) fn keeps_panics(&self) -> bool {
        self.board.keeps_panics
    }

    /// True if a boot loader starts the kernel, from firmware.
    pub(crate) fn has_loader(&self) -> bool {
        self.board.firmware.is_some()
    }

    /// True if the board has a hardware watchdog.
    pub(crate) fn has_watchdog(&self) -> bool {
        self.board.watchdog.is_some()
    }

    /// Adds a file that the guest sees as a read-only disk, in this order: `/dev/vdb`, `/dev/vdc`, ...
    pub(crate) fn lend(&mut self, file: &Path) {
        self.files.push(file.to_owned());
    }

    /// Makes a factory-new disk with the flashed image; the disk is larger than the image.
    pub(crate) fn flash(&self) -> Result<(), HilError> {
        let disk = self.disk();
        copy_sparse(&self.image.join("disk.img"), &disk)?;
        let grown = File::options().write(true).open(&disk).and_then(|file| {
            let length = file.metadata()?.len();
            file.set_len(length + LARGER_BYTES)
        });
        grown.map_err(HilError::io("enlarge", &disk))?;
        if self.board.credentials == Credentials::Partition {
            for (name, path) in &self.identity {
                put_on_efi(&disk, path, name.trim_start_matches("kedge."))?;
            }
        }
        match &self.board.firmware {
            Some((_, variables)) => convert("raw", variables, "qcow2", &self.variables()),
            None => Ok(()),
        }
    }

    /// At its start, continues from the files of [`copy_saved`] in `from`, with disks of its own.
    pub(crate) fn copy_disks(&mut self, from: &Path) -> Result<(), HilError> {
        copy_existing(from, &self.dir, &[DISK, VARIABLES])?;
        self.saved = Some(from.join(SAVED));
        Ok(())
    }

    /// The port of loopback at which the guest's connections to a registry arrive.
    pub(crate) fn registry_port(&self) -> u16 {
        self.registry_port
    }

    /// The directory of all files of this machine.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The disk as it was when the machine was last switched on; while it is off, the present disk.
    fn disk(&self) -> PathBuf {
        self.dir.join(DISK)
    }

    /// The guest's writes since then: a file for reads, and a log in order, for [`Machine::cut`].
    fn written(&self) -> [PathBuf; 2] {
        ["written.qcow2", "written.log"].map(|name| self.dir.join(name))
    }

    fn variables(&self) -> PathBuf {
        self.dir.join(VARIABLES)
    }

    /// The machine's serial output, over all starts.
    pub(crate) fn serial(&self) -> PathBuf {
        self.dir.join("serial.log")
    }

    /// The output of QEMU itself since the last start.
    pub(crate) fn log(&self) -> PathBuf {
        self.dir.join("qemu.log")
    }

    /// Switches it on.
    pub(crate) fn start(&mut self, start: &Start) -> Result<(), HilError> {
        for socket in ["monitor", "console"] {
            let _ = std::fs::remove_file(self.dir.join(socket));
        }
        let ([layer, writes], before) = (self.written(), self.disk());
        let options = ["create", "-q", "-f", "qcow2", "-F", "raw", "-b", plain(&before)?, plain(&layer)?];
        tool("qemu-img", &options.map(OsStr::new))?;
        File::create(&writes).map_err(HilError::io("create", &writes))?;
        let path = self.log();
        let log = File::create(&path).map_err(HilError::io("create", &path))?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).args(self.command(start)?).current_dir(&self.dir);
        let again = log.try_clone().map_err(HilError::io("create", &path))?;
        command.stdin(Stdio::null()).stdout(again).stderr(log);
        let child = command.spawn().map_err(|source| HilError::Io { tried: "start QEMU".into(), source })?;
        self.process = Some(child);
        let end = Instant::now() + SOCKETS_LIMIT;
        while self.monitor.is_none() {
            match Qmp::connect(&self.dir.join("monitor")) {
                Ok(monitor) => self.monitor = Some(monitor),
                Err(error) => self.still_starting(end, error)?,
            }
        }
        self.shell = Some(Shell::connect(&self.dir.join("console"))?);
        self.started = start.clone();
        if start.from_snapshot {
            self.wait_status("the saved machine in memory", "query-status", |status| status != "inmigrate")?;
        }
        self.plug(!start.unplugged)?;
        self.monitor().execute("cont", json!({}))?;
        Ok(())
    }

    /// Repeats a query until its status is one of the awaited ones.
    fn wait_status(
        &mut self,
        awaited: &str,
        query: &str,
        is_awaited: impl Fn(&str) -> bool,
    ) -> Result<(), HilError> {
        let end = Instant::now() + SAVE_LIMIT;
        loop {
            let found = self.monitor().execute(query, json!({}))?;
            let status = found["status"].as_str().unwrap_or_default();
            if is_awaited(status) {
                return Ok(());
            }
            if status == "failed" || Instant::now() > end {
                return Err(HilError::Never { awaited: awaited.to_owned(), found: found.to_string() });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn still_starting(&mut self, end: Instant, error: HilError) -> Result<(), HilError> {
        let process = self.process.as_mut().expect("it was started");
        let ended =
            process.try_wait().map_err(|source| HilError::Io { tried: "wait for QEMU".into(), source })?;
        if let Some(status) = ended {
            let output = std::fs::read_to_string(self.log()).unwrap_or_default();
            return Err(HilError::Machine(format!("QEMU ended with {status}: {}", output.trim())));
        }
        if Instant::now() > end {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(50));
        Ok(())
    }

    fn command(&self, start: &Start) -> Result<Vec<String>, HilError> {
        let mut words = self.board.qemu.clone();
        let mut add = |text: &str| words.extend(text.split(' ').map(str::to_owned));
        add("-S -accel tcg,thread=multi -nodefaults -display none -no-user-config");
        add(&format!("-m {}", self.memory_mib(start)));
        add("-chardev file,id=serial,path=serial.log,append=on -serial chardev:serial");
        add("-qmp unix:monitor,server=on,wait=off -device virtio-rng-pci");
        add("-device virtio-serial-pci -chardev socket,id=console,path=console,server=on,wait=off");
        add("-device virtconsole,chardev=console");
        // the guest's flushes are logged; passing them on to this machine's own disk would only take time
        add("-blockdev driver=file,node-name=before,filename=disk.raw,read-only=on");
        add("-blockdev driver=file,node-name=layer,filename=written.qcow2,discard=unmap,cache.no-flush=on");
        add("-blockdev driver=qcow2,node-name=disk,file=layer,backing=before,discard=unmap");
        add("-blockdev driver=file,node-name=log,filename=written.log,cache.no-flush=on");
        add(
            "-blockdev driver=blklogwrites,node-name=logged,file=disk,log=log,log-sector-size=512,discard=unmap",
        );
        // a kernel that QEMU starts itself has boot index 0, and QEMU refuses a second device with it
        let order = if self.starts_kernel(start) { "" } else { ",bootindex=0" };
        add(&format!("-device virtio-blk-pci,drive=logged,write-cache=on{order}"));
        for (number, file) in self.files.iter().enumerate() {
            add(&format!("-drive if=none,id=file{number},file={},format=raw,readonly=on", plain(file)?));
            add(&format!("-device virtio-blk-pci,drive=file{number}"));
        }
        if !start.sticks.is_empty() {
            add("-device qemu-xhci");
        }
        for (number, stick) in start.sticks.iter().enumerate() {
            add(&format!("-drive if=none,id=stick{number},file={},format=raw", plain(stick)?));
            add(&format!("-device usb-storage,drive=stick{number}"));
        }
        let relay = relay::program()?;
        add("-device virtio-net-pci,netdev=net,romfile= -netdev");
        let hub = if start.hub_moved { MOVED_HUB_IN_GUEST } else { HUB_IN_GUEST };
        let address = start.address.map(|address| format!(",dhcpstart={address}")).unwrap_or_default();
        let forward = |from: &str, to: &str| -> Result<String, HilError> {
            Ok(format!(",guestfwd=tcp:{from}-cmd:{} relay {to}", plain(&relay)?))
        };
        let hub = forward(hub, &self.hub_address)?;
        let registry = forward(REGISTRY_IN_GUEST, &format!("127.0.0.1:{}", self.registry_port))?;
        words.push(format!("user,id=net,restrict=on{address}{hub}{registry}"));
        let mut add = |text: &str| words.extend(text.split(' ').map(str::to_owned));
        match self.board.watchdog.as_deref() {
            None => {}
            Some("chipset") => add("-action watchdog=reset"),
            Some(card) => add(&format!("-device {card} -action watchdog=reset")),
        }
        if let Some(clock) = &start.clock {
            add(&format!("-rtc base={clock},clock=vm"));
        }
        if start.from_snapshot {
            let saved = self.saved.as_deref().ok_or_else(|| HilError::Machine("nothing was saved".into()))?;
            words.extend(["-incoming".into(), format!("exec:cat {}", plain(saved)?)]);
        }
        let options = self.hand_over(&mut words)?;
        self.firmware(start, &options, &mut words)?;
        Ok(words)
    }

    /// Gives the credentials; returns the part that goes to the kernel's command line.
    fn hand_over(&self, words: &mut Vec<String>) -> Result<String, HilError> {
        let options = " systemd.set_credential=kedge.rescue-shell:1".to_owned();
        if self.board.credentials == Credentials::Smbios {
            words.extend([
                "-smbios".into(),
                "type=11,value=io.systemd.credential:kedge.rescue-shell=1".into(),
            ]);
        }
        for (name, path) in &self.identity {
            let content = std::fs::read(path).map_err(HilError::io("read", path))?;
            let encoded = STANDARD.encode(&content);
            match self.board.credentials {
                Credentials::Smbios => {
                    let file = self.dir.join(format!("{name}.smbios"));
                    std::fs::write(&file, format!("io.systemd.credential.binary:{name}={encoded}"))
                        .map_err(HilError::io("write", &file))?;
                    words.extend(["-smbios".into(), format!("type=11,path={}", plain(&file)?)]);
                }
                // flash() has put it there
                Credentials::Partition => {}
            }
        }
        Ok(options)
    }

    /// The memory of such a start, in MiB.
    pub(crate) fn memory_mib(&self, start: &Start) -> u32 {
        if start.is_small { self.board.small_memory_mib } else { self.board.memory_mib }
    }

    /// True if QEMU itself starts the kernel.
    fn starts_kernel(&self, start: &Start) -> bool {
        start.direct || self.board.firmware.is_none()
    }

    fn firmware(&self, start: &Start, options: &str, words: &mut Vec<String>) -> Result<(), HilError> {
        if let (Some((code, _)), false) = (&self.board.firmware, self.starts_kernel(start)) {
            words.extend([
                "-drive".into(),
                format!("if=pflash,unit=0,format=raw,readonly=on,file={}", plain(code)?),
                "-drive".into(),
                "if=pflash,unit=1,format=qcow2,file=variables.qcow2".into(),
            ]);
            return Ok(());
        }
        let info = self.image.join("build-info");
        let text = std::fs::read_to_string(&info).map_err(HilError::io("read", &info))?;
        let line = text.lines().find_map(|line| line.strip_prefix("OPTIONS="));
        let own = line.ok_or_else(|| HilError::Garbled(format!("{}: no OPTIONS", info.display())))?;
        let file = |name: &str| plain(&self.image.join(name)).map(str::to_owned);
        words.extend([
            "-kernel".into(),
            file("vmlinuz")?,
            "-initrd".into(),
            file("initrd")?,
            "-append".into(),
        ]);
        words.push(format!("root=PARTLABEL=root-a {own}{options}"));
        Ok(())
    }

    fn monitor(&mut self) -> &mut Qmp {
        self.monitor.as_mut().expect("the machine is on: stories send no commands while it is off")
    }

    /// Runs a command in the guest; returns its exit code and output.
    pub(crate) fn run(&mut self, command: &str, limit: Duration) -> Result<(i32, String), HilError> {
        match &mut self.shell {
            Some(shell) => shell.run(command, limit),
            None => Err(HilError::Machine(format!("the machine is off, asked for {command:?}"))),
        }
    }

    /// The same, with a limit within which the guest must have a shell and answer.
    pub(crate) fn run_within(&mut self, command: &str, limit: Duration) -> Result<(i32, String), HilError> {
        if let Some(shell) = &mut self.shell {
            shell.greet_within(limit)?;
        }
        self.run(command, limit)
    }

    /// Sends a command that ends this boot.
    pub(crate) fn run_last(&mut self, command: &str) -> Result<(), HilError> {
        self.monitor().forget_events();
        match &mut self.shell {
            Some(shell) => shell.send_last(command),
            None => Err(HilError::Machine(format!("the machine is off, asked for {command:?}"))),
        }
    }

    /// Waits until the guest has been reset, and moves it into a new QEMU, as it is. The old QEMU keeps its
    /// translations of the previous boot's code: each write of the firmware to memory that held code then
    /// walks a list, and on a busy host the firmware's timer handler takes longer than the 10 ms between two
    /// ticks, so that it never does anything else.
    pub(crate) fn wait_reset(&mut self, limit: Duration) -> Result<(), HilError> {
        if !self.monitor().wait_event("RESET", limit)? {
            let awaited = format!("QEMU's event RESET within {limit:?}");
            return Err(HilError::Never { awaited, found: self.serial_end() });
        }
        let unplugged = !self.is_plugged;
        let saved = self.dir.join("renewed");
        self.save_as(saved)?;
        self.start(&Start { from_snapshot: true, unplugged, ..self.started.clone() })
    }

    /// Notes that the guest has been reset: the next command waits for the new shell.
    pub(crate) fn was_reset(&mut self) {
        if let Some(shell) = &mut self.shell {
            shell.forget();
        }
    }

    /// Saves the running machine as a starting point for others, and switches it off; nothing is lost.
    pub(crate) fn save(&mut self) -> Result<(), HilError> {
        self.save_as(self.dir.join(SAVED))
    }

    fn save_as(&mut self, file: PathBuf) -> Result<(), HilError> {
        let uri = format!("exec:cat >{}", plain(&file)?);
        let monitor = self.monitor();
        monitor.execute("stop", json!({}))?;
        monitor.execute("migrate-set-parameters", json!({"max-bandwidth": 1_u64 << 40}))?;
        monitor.execute("migrate", json!({"uri": uri}))?;
        self.wait_status("the saved machine", "query-migrate", |status| status == "completed")?;
        self.switch_off();
        self.saved = Some(file);
        if self.recordings.is_some() {
            let recording = Recording::read(&self.disk(), &self.written()[1])?;
            self.recordings.get_or_insert_default().push(recording);
        }
        self.settle(Fate::Kept).map(|_| ())
    }

    /// Plugs or pulls the network cable.
    pub(crate) fn plug(&mut self, is_in: bool) -> Result<(), HilError> {
        self.is_plugged = is_in;
        self.monitor().execute("set_link", json!({"name": "net", "up": is_in})).map(|_| ())
    }

    /// Cuts the power: unflushed writes are lost, or a random part of them.
    pub(crate) fn cut(&mut self) -> Result<Unflushed, HilError> {
        let at = self.log_length();
        // writes in progress get their place in the log; they count as unflushed
        if let Some(monitor) = &mut self.monitor {
            // a machine whose monitor does not answer is switched off all the same
            let _ = monitor.execute("stop", json!({}));
        }
        self.switch_off();
        self.settle(Fate::Cut { at, seed: chance_seed() })
    }

    /// The present length of the log of the guest's writes: everything that it has flushed is before that.
    pub(crate) fn log_length(&self) -> u64 {
        std::fs::metadata(&self.written()[1]).map_or(0, |log| log.len())
    }

    /// From now on keeps all its writes, for [`Machine::recordings`].
    pub(crate) fn record(&mut self) {
        self.recordings = Some(Vec::new());
    }

    /// Switches it off; returns its writes since it was started, in parts that end with a reset.
    pub(crate) fn recordings(&mut self) -> Result<Vec<Recording>, HilError> {
        self.monitor().execute("stop", json!({}))?;
        self.switch_off();
        let mut recordings = self.recordings.take().unwrap_or_default();
        recordings.push(Recording::read(&self.disk(), &self.written()[1])?);
        Ok(recordings)
    }

    /// The range of the disk's partition of this name, in bytes.
    pub(crate) fn partition(&self, name: &str) -> Result<Range<u64>, HilError> {
        let disk = self.disk();
        let output = Command::new("sfdisk").arg("--json").arg(&disk).output();
        let output = output.map_err(HilError::io("run sfdisk on", &disk))?;
        let table: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let partitions = table["partitiontable"]["partitions"].as_array();
        let found = partitions.and_then(|all| all.iter().find(|partition| partition["name"] == name));
        let sectors = found.and_then(|found| Some((found["start"].as_u64()?, found["size"].as_u64()?)));
        let (start, size) = sectors
            .ok_or_else(|| HilError::Garbled(format!("{}: no partition {name}: {table}", disk.display())))?;
        Ok(start * 512..(start + size) * 512)
    }

    /// A file of the image folder.
    pub(crate) fn image_file(&self, name: &str) -> PathBuf {
        self.image.join(name)
    }

    /// Ends QEMU.
    fn switch_off(&mut self) {
        self.monitor = None;
        self.shell = None;
        if let Some(mut process) = self.process.take() {
            // it may have ended by itself
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Brings the disk to the state after the writes that survive.
    fn settle(&self, fate: Fate) -> Result<Unflushed, HilError> {
        let [layer, log] = self.written();
        if !layer.exists() {
            return Ok(Unflushed::default());
        }
        let unflushed = apply_log(&self.disk(), &log, fate)?;
        std::fs::remove_file(&layer).map_err(HilError::io("remove", &layer))?;
        Ok(unflushed)
    }

    /// The last lines of the serial log.
    pub(crate) fn serial_end(&self) -> String {
        let bytes = std::fs::read(self.serial()).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<_> = text.lines().rev().take(12).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.switch_off();
    }
}

/// The seed of a cut: `KEDGE_HIL_SEED`, or another one each time.
fn chance_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let given = std::env::var("KEDGE_HIL_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or(now.as_nanos() as u64)
}

/// Copies the files of a machine that was saved in `from`.
pub(crate) fn copy_saved(from: &Path, to: &Path) -> Result<(), HilError> {
    std::fs::create_dir_all(to).map_err(HilError::io("create directory", to))?;
    copy_existing(from, to, &[DISK, VARIABLES, SAVED])
}

fn copy_existing(from: &Path, to: &Path, names: &[&str]) -> Result<(), HilError> {
    let mut existing = names.iter().filter(|name| from.join(name).exists());
    existing.try_for_each(|name| copy_sparse(&from.join(name), &to.join(name)))
}

/// Copies a file with its holes.
fn copy_sparse(from: &Path, to: &Path) -> Result<(), HilError> {
    tool("cp", &["--sparse=always".as_ref(), from.as_os_str(), to.as_os_str()])
}

/// A disk image in another format.
fn convert(format: &str, from: &Path, new_format: &str, to: &Path) -> Result<(), HilError> {
    let options = ["convert", "-f", format, "-O", new_format].map(OsStr::new);
    tool("qemu-img", &[&options[..], &[from.as_os_str(), to.as_os_str()]].concat())
}

/// Copies a file into the folder `kedge` on the EFI partition of a disk image.
fn put_on_efi(disk: &Path, file: &Path, name: &str) -> Result<(), HilError> {
    let (partition, to) = (format!("{}@@1M", disk.display()), format!("::/kedge/{name}"));
    tool("mcopy", &["-i".as_ref(), partition.as_ref(), file.as_os_str(), to.as_ref()])
}

/// Runs a program of this machine that must succeed.
pub(crate) fn tool(program: &str, arguments: &[&OsStr]) -> Result<(), HilError> {
    let shown = format!("{program} {}", arguments.join(OsStr::new(" ")).to_string_lossy());
    let failed = |source| HilError::Io { tried: format!("run {shown}"), source };
    let output = Command::new(program).args(arguments).output().map_err(failed)?;
    match output.status.success() {
        true => Ok(()),
        false => {
            Err(HilError::Machine(format!("{shown}: {}", String::from_utf8_lossy(&output.stderr).trim())))
        }
    }
}

/// Checks that a path can be used in QEMU's options unquoted: without commas and spaces.
fn plain(path: &Path) -> Result<&str, HilError> {
    match path.to_str() {
        Some(text) if !text.contains([',', ' ']) => Ok(text),
        _ => Err(HilError::Machine(format!(
            "{}: QEMU takes no path with commas or spaces here",
            path.display()
        ))),
    }
}
