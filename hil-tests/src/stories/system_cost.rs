//! What an update by a configuration costs over a line of 1 Mbit/s: bytes and seconds, by chunks and as a
//! whole, writes to the disk, and the agent's memory meanwhile.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::systems::{Pushed, Site, fetched_kib};
use crate::error::HilError;
use crate::stage::{NODE, Stage, condition, patience};

/// 1 Mbit/s.
const BYTES_PER_SECOND: u64 = 125_000;
/// How much more memory the agent may take while it fetches and writes.
const MOST_MORE_KIB: u64 = 1024;

/// Most of an image that differs in its version alone.
const MOST_BY_CHUNKS_KIB: u64 = 1024;

/// Passes connections on to another port, both ways together so many bytes a second from the server's side.
/// It ends with this program.
fn line(listener: TcpListener, to: u16) {
    let next = Arc::new(Mutex::new(Instant::now()));
    std::thread::spawn(move || {
        for from in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, to)) else { continue };
            let (Ok(mut asks), Ok(mut asked)) = (from.try_clone(), server.try_clone()) else { continue };
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut asks, &mut asked);
                let _ = asked.shutdown(Shutdown::Write);
            });
            let next = next.clone();
            std::thread::spawn(move || answer(&server, &from, &next));
        }
    });
}

fn answer(mut server: &TcpStream, mut to: &TcpStream, next: &Mutex<Instant>) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = server.read(&mut buffer) {
        let cost = Duration::from_micros(count as u64 * 1_000_000 / BYTES_PER_SECOND);
        let due = {
            let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
            *next = (*next).max(Instant::now()) + cost;
            *next
        };
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Bytes written to the disk since the machine was switched on.
fn written(stage: &mut Stage<'_>) -> Result<u64, HilError> {
    let stat = stage.guest("cat /sys/block/vda/stat")?;
    let sectors = stat.split_whitespace().nth(6).and_then(|word| word.parse::<u64>().ok());
    sectors
        .map(|sectors| sectors * 512)
        .ok_or_else(|| HilError::Garbled(format!("/sys/block/vda/stat: {stat}")))
}

fn pss_kib(stage: &mut Stage<'_>) -> Result<u64, HilError> {
    let text =
        stage.guest("p=$(systemctl show -P MainPID kedge); sed -n 's/^Pss: *//p' /proc/$p/smaps_rollup")?;
    let kib = text.split(' ').next().and_then(|word| word.parse().ok());
    kib.ok_or_else(|| HilError::Garbled(format!("Pss: {text}")))
}

/// Fetches and writes an update that a person would start.
/// Returns the kilobytes that came over the line.
fn measure(stage: &mut Stage<'_>, site: &Site, what: &str, update: &Pushed) -> Result<u64, HilError> {
    let (before, begun, disk) = (pss_kib(stage)?, stage.uptime()?, written(stage)?);
    stage.push(what, &site.wants(update, "    reboot: Manual\n"))?;
    let mut most = before;
    stage.wait("SystemOK Unknown WaitsForRestart", patience() * 2, |stage| {
        most = most.max(pss_kib(stage)?);
        let (_, message, reason) = condition(&stage.node()?, "SystemOK");
        let is_it = reason == "WaitsForRestart" && message.len() < 200;
        let wanted = stage.guest("cat /var/lib/kedge/system/wanted")?.contains(update.digest_hex());
        Ok(if is_it && wanted { Ok(()) } else { Err(format!("{reason}: {message}")) })
    })?;
    let fetched = stage.logged_at("kedge", "bytes came from its server")?.saturating_sub(begun);
    let all = stage.uptime()?.saturating_sub(begun);
    let (kib, disk) = (fetched_kib(stage, &update.version)?, (written(stage)? - disk) / 1024);
    stage.say(&format!(
        "{what}: {kib} KiB in {} s over 1 Mbit/s, armed after {} s; {disk} KiB written to the disk; PSS {before} KiB, {most} KiB at most meanwhile",
        fetched.as_secs(),
        all.as_secs()
    ));
    let more = most.saturating_sub(before);
    stage.expect(&format!("{more} KiB more memory, at most {MOST_MORE_KIB}"), more <= MOST_MORE_KIB, true)?;
    Ok(kib)
}

pub(super) fn over_a_line(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let (bound, free) = (
        TcpListener::bind((Ipv4Addr::LOCALHOST, stage.registry_port)),
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr()),
    );
    let failed = |source| HilError::Io { tried: "find a free port".into(), source };
    line(bound.map_err(failed)?, free.as_ref().map_or(0, |address| address.port()));
    stage.registry_port = free.map_err(failed)?.port();
    let site = Site::open(stage)?;
    stage.guest("journalctl --rotate && journalctl --vacuum-time=1s >/dev/null 2>&1; sync")?;
    let next = site.update("next", &[("ALTER_ROOT", "true")])?;
    let kib = measure(stage, &site, "by-chunks", &next)?;
    stage.expect(
        &format!("{kib} KiB by chunks, at most {MOST_BY_CHUNKS_KIB}"),
        kib <= MOST_BY_CHUNKS_KIB,
        true,
    )?;
    // without the index of the root that runs nothing of it is found
    stage.guest("rm /efi/kedge/a/index && sync")?;
    let whole = site.update("whole", &[("ALTER_ROOT", "true")])?;
    measure(stage, &site, "whole", &whole)?;
    let seen = stage.hub.kubectl().run(&["get", "node", NODE])?;
    stage.expect(&format!("a Ready node: {seen}"), seen.contains(" Ready "), true)
}
