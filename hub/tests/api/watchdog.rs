//! The hub under a supervisor that waits for pings.

use std::os::unix::net::UnixDatagram;
use std::process::Command;

use super::server::{COMMAND_LIMIT, Hub, scratch};

#[test]
fn hub_pings_once_it_is_ready_until_it_is_stopped() {
    let folder = scratch();
    let path = folder.join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(COMMAND_LIMIT)).unwrap();
    let next = || {
        let mut bytes = [0; 256];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).trim_end().to_owned()
    };
    let data = folder.join("hub");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kedge-hub"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(&data);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "300000").env_remove("WATCHDOG_PID");
    let mut hub = Hub::spawn(command, &data);
    assert_eq!(next(), "READY=1\nWATCHDOG=1");
    for _ in 0..3 {
        assert_eq!(next(), "WATCHDOG=1");
    }
    assert_eq!(hub.stop("TERM").0, Some(0));
    assert!(std::iter::repeat_with(next).any(|message| message == "STOPPING=1"));
}
