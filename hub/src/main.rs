//! The program `kedge-hub`: reads the command line, connects the parts, prints, and sets the exit status.
//!
//! Order of a start: data directory, store (which locks the directory), listener, keys, then the controllers
//! and the server; READY only when requests are answered. All decisions are in the library.

use std::fmt::Display;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use kedge_hub::capacity::{Capacity, Machine};
use kedge_hub::flags::{self, Command, Restore, Serve};
use kedge_hub::kubeconfig_command::Printed;
use kedge_hub::pki::{self, Pki};
use kedge_hub::probe::Probe;
use kedge_hub::store::{backup, last_backup, series};
use kedge_hub::{
    Authorities, Hub, VERSION, addresses, ca_command, clock, controllers, denials, denied_command, elsewhere,
    guard, kubeconfig_command, logging, node_acts, node_command, rollout_command, server, token_command,
    user_command,
};
use kedge_platform::Supervisor as _;
use kedge_platform::linux::NotifySocket;
use time::OffsetDateTime;
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{SignalKind, signal};

/// Most connections that wait to be accepted: a whole fleet reconnects at once after a restart.
const BACKLOG: u32 = 4096;
/// How often the serving certificate's age is checked.
const RENEWAL_CHECK: Duration = Duration::from_secs(60 * 60);

fn main() -> ExitCode {
    match flags::parse(std::env::args_os().skip(1)) {
        Ok(command) => match run(command) {
            Ok(()) => ExitCode::SUCCESS,
            Err(message) => {
                eprintln!("kedge-hub: {message}");
                ExitCode::FAILURE
            }
        },
        Err(error) => {
            eprintln!("kedge-hub: {error}\nsee kedge-hub --help");
            ExitCode::from(2)
        }
    }
}

fn run(command: Command) -> Result<(), String> {
    match command {
        Command::Help(page) => print(&page),
        Command::Completions(script) => print(script),
        Command::Version => print(&format!("kedge-hub {VERSION}\n")),
        Command::NodeKubeconfig(options) => printed(&kubeconfig_command::run(&options)?),
        Command::NodeBootstrap(options) => {
            printed(&small_runtime()?.block_on(token_command::bootstrap(&options))?)
        }
        Command::Token(command) => small_runtime()?
            .block_on(token_command::run(&command, print, |text| eprintln!("kedge-hub: {text}"))),
        Command::Denied(command) => print(&small_runtime()?.block_on(denied_command::run(&command))?),
        Command::Node(command) => print(&small_runtime()?.block_on(node_command::run(&command))?),
        Command::Ca(command) => print(&small_runtime()?.block_on(ca_command::run(&command))?),
        Command::User(command) => printed(&small_runtime()?.block_on(user_command::run(&command))?),
        Command::Kubeconfig(options) => printed(&user_command::admin(&options)?),
        Command::Rollout(command) => small_runtime()?.block_on(rollout_command::run(&command, print)),
        Command::Controllers(command) => {
            logging::start(command.log_level);
            small_runtime()?.block_on(elsewhere::run(&command))
        }
        Command::Backup(options) => {
            let (file, made) = match options.keep {
                Some(keep) => series::backup(&options.data_dir, &options.file, keep).map_err(text)?,
                None => {
                    let made = backup::backup(&options.data_dir, &options.file).map_err(text)?;
                    (options.file, made)
                }
            };
            print(&format!("{}: {} objects, sha256 {}\n", file.display(), made.content.objects, made.digest))
        }
        Command::Restore(options) => restore(&options),
        Command::Serve(options) => {
            logging::start(options.log_level);
            let machine = Machine::read();
            let capacity = Capacity::of(&machine);
            log::info!("kedge-hub {VERSION}; {machine}: {capacity}");
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(capacity.workers)
                .thread_stack_size(server::STACK_BYTES)
                .enable_all()
                .build()
                .map_err(|error| format!("cannot start the runtime: {error}"))?
                .block_on(serve(options, capacity))
        }
    }
}

fn restore(options: &Restore) -> Result<(), String> {
    let done = match &options.file {
        Some(file) => backup::restore(&options.data_dir, file, options.forget_revocations),
        None => backup::begin_anew(&options.data_dir),
    };
    let done = done.map_err(text)?;
    if let (Some(file), None) = (&options.file, &done.digest) {
        eprintln!(
            "kedge-hub: warning: {} has no checksum (an older hub made it, or it is a copy of a store): damage within a value \
             is not noticed",
            file.display()
        );
    }
    let place = options.data_dir.display();
    let mut out = match &options.file {
        Some(_) => format!("{place}: {} objects restored", done.objects),
        None => format!("{place}: begun anew, without objects"),
    };
    match &done.before {
        Some(before) => out.push_str(&format!("; the old store is {}\n", before.display())),
        None => out.push_str("; there was no store\n"),
    }
    for denial in &done.kept {
        out.push_str(&format!("still denied: {denial}, which the backup did not know\n"));
    }
    for denial in &done.back {
        out.push_str(&format!("denied again: {denial}, whose denial ended after the backup was made\n"));
    }
    for binding in &done.granted {
        out.push_str(&format!("granted again: {binding}, which the replaced store did not\n"));
    }
    for token in &done.voided {
        out.push_str(&format!("void: {token}, for nobody knows whether it was used after the backup\n"));
    }
    if done.newer > 0 {
        out.push_str(&format!(
            "newest credentials kept: {} nodes have had a newer one than the backup knows\n",
            done.newer
        ));
    }
    for file in &done.keys {
        out.push_str(&format!("authorities: {file} is written from the backup\n"));
    }
    print(&out)
}

/// A runtime for commands that ask the running hub.
fn small_runtime() -> Result<tokio::runtime::Runtime, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| format!("cannot start the runtime: {error}"))
}

fn printed(printed: &Printed) -> Result<(), String> {
    for warning in &printed.warnings {
        eprintln!("kedge-hub: warning: {warning}");
    }
    print(&printed.out)
}

async fn serve(options: Serve, capacity: Capacity) -> Result<(), String> {
    // installed before anything is created, so that a stop during the start is clean, too
    let shutdown = shutdown_signal().map_err(|error| format!("cannot listen for signals: {error}"))?;
    pki::make_data_dir(&options.data_dir).map_err(text)?;
    let hub = Hub::open(&options.data_dir).map_err(text)?;
    let listener = listen(options.listen).map_err(|error| cannot_listen(options.listen, &error))?;
    let address = listener.local_addr().map_err(|error| cannot_listen(options.listen, &error))?;

    let now = OffsetDateTime::now_utc();
    let names = addresses::names(&options, address);
    let pki = Pki::open(&options.data_dir, &names, now).map_err(text)?;
    hub.use_names(names);
    let (admin_url, node_url) = addresses::urls(&options, address);
    let (host, port) = addresses::service(&options, address);
    hub.publish_service(host, port, address.port());
    let kubeconfig = pki.publish(&admin_url, &node_url, now).map_err(text)?;
    hub.note_issued();
    pki::note_guess(&options.data_dir, addresses::is_guessed(&options, address)).map_err(text)?;
    pki.publish_node_life(options.certificates.life).map_err(text)?;
    let tls = pki.server_config().map_err(text)?;
    hub.use_tokens(pki.tokens(&node_url).map_err(text)?);
    let probe = Probe::new(address, pki.client_config(now).map_err(text)?);
    let ca = pki.ca_path();

    hub.use_authorities(Authorities { all: pki.authorities(), bundle: pki.bundle_digest() });
    hub.make_root_certificates(&pki.ca_text());
    hub.make_cluster_info(&pki.cluster_info(&node_url));
    let pki = Arc::new(pki);
    let (times, config_rollouts) = (options.certificates, options.config_rollouts);
    let tools = controllers::Tools { pki: Arc::clone(&pki), probe, times, config_rollouts };
    hub.use_rollout_defaults(options.rollouts);
    let is_fenced = options.fenced;
    let mut background = match is_fenced {
        true => {
            log::warn!("fenced: nothing is changed but the Leases of nodes, and no controller runs");
            hub.fence();
            tokio::task::JoinSet::new()
        }
        false => controllers::start(&hub, tools, options.node_monitor_grace_period),
    };
    background.spawn(renew(Arc::clone(&pki)));
    background.spawn(denials::follow(hub.clone(), pki));
    background.spawn(clock::follow(hub.clone()));
    if let Err(error) = last_backup::follow(Arc::downgrade(&hub), options.data_dir.clone()) {
        return Err(format!("cannot start a thread: {error}"));
    }
    if !is_fenced {
        background.spawn(node_acts::follow(hub.clone()));
    }
    let (listening, ca, kubeconfig) = (admin_url, shown(&ca), shown(&kubeconfig));
    log::info!("kedge-hub listens on {address}");
    // from here on connections wait in the backlog, so the announced address works already
    if let Err(error) = print(&format!("listening: {listening}\nca: {ca}\nkubeconfig: {kubeconfig}\n")) {
        log::warn!("the addresses were not printed ({error}); the hub listens on {listening}");
    }
    let supervisor = Arc::new(NotifySocket::from_environment());
    supervisor.ready();
    if let Err(error) = guard::start(&hub, supervisor.clone()) {
        // without pings the supervisor would kill a working hub
        return Err(format!("cannot start a thread: {error}"));
    }
    let served = server::serve(listener, tls, hub, capacity, async move {
        shutdown.await;
        supervisor.stopping();
    })
    .await;
    background.shutdown().await;
    served.map_err(text)
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // a restart must not wait until old connections time out
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn cannot_listen(address: SocketAddr, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("cannot listen on {address}: another program does; stop it or give another --listen")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("cannot listen on {address}: this machine has no such address; give another --listen")
        }
        _ => format!("cannot listen on {address}: {error}"),
    }
}

async fn renew(pki: Arc<Pki>) {
    loop {
        tokio::time::sleep(RENEWAL_CHECK).await;
        match pki.renew(OffsetDateTime::now_utc()) {
            Ok(true) => log::info!("renewed the serving certificate"),
            Ok(false) => {}
            Err(error) => log::error!("renewing the serving certificate: {error}"),
        }
    }
}

fn shutdown_signal() -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

fn print(text: &str) -> Result<(), String> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| format!("cannot print: {error}"))
}

/// An absolute path.
fn shown(path: &Path) -> String {
    path.canonicalize().as_deref().unwrap_or(path).display().to_string()
}

fn text(error: impl Display) -> String {
    error.to_string()
}
