//! The credentials in use: the kubeconfig and the files it names, as last read successfully.
//!
//! Owns when those files are checked, on a thread that does nothing else: on every request, though for
//! renewals only each half minute and after a failure. The check of each half minute is for the next renewal:
//! none waits for it. Always holds: a request waits for the files at most [`FILES_LIMIT`], once; while they do not answer (a dying disk, a network file system) the earlier content
//! stays in use and the heartbeat continues. An unusable change leaves the old credentials in place too, and
//! is tried again until it can be used or is taken back.
//!
//! Left to others: the meaning of a kubeconfig (`kubeconfig`), and connections with the credentials
//! (`transport`).

use crate::identity::in_use;
use crate::locks::locked;
use crate::net::error::OpenError;
use crate::net::proxy::ProxyEnvironment;
use crate::net::transport::{STACK_BYTES, WallClock};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use kedge_platform::linux::give_back_stack;
use rustls::pki_types::ServerName;
use ureq::http::HeaderValue;

use super::kubeconfig::{self, FileRead, MAX_TOKEN_BYTES, ReadFile, ServerAddress, Stamp, TokenSource};
use super::proxy::ProxyAddress;
use super::servers::Servers;
use super::transport::Route;
use crate::errors::chain;
use crate::node_name;
use crate::queue::{Receiver, Sender, sync_channel};

/// How long a token is used before its file is read again, whatever the file's time is (upstream's period).
const TOKEN_PERIOD: Duration = Duration::from_secs(60);

/// How long a request waits for a check of the files. Flash that collects its garbage takes a second; a
/// renewal has four at least.
const FILES_LIMIT: Duration = Duration::from_secs(2);

/// How long a check counts for routine requests, unless one fails: three renewals. Each wakes a thread.
const ROUTINE: Duration = Duration::from_secs(25);

/// A disk that takes longer than [`FILES_LIMIT`] to fail is left alone for this many times as long, because a
/// request waits at each try.
const FAILED_PAUSE: u32 = 10;

/// Requests that wait for one check: one for each stream, and some more.
const LOOKS: usize = 8;

/// The credentials of one kubeconfig, kept up to date.
pub(super) struct Credentials {
    latest: Arc<Mutex<Arc<Access>>>,
    looks: Sender<Sender<()>>,
    /// The last check took longer than any request waits.
    is_stuck: Arc<AtomicBool>,
    kubeconfig: PathBuf,
    /// When a request last asked for a check.
    looked: Mutex<Option<Instant>>,
    pub(super) servers: Servers,
    proxies: ProxyEnvironment,
}

impl Credentials {
    /// Reads the files for the first time, here and now.
    ///
    /// # Errors
    /// If something in them is unusable, or the system gives no thread to read them on later.
    pub(super) fn load(
        options: ApiOptions,
        read: Arc<ReadFile>,
        servers: Servers,
    ) -> Result<Self, OpenError> {
        let (access, files) = load(&options, &*read, None, &servers)?;
        let latest = Arc::new(Mutex::new(Arc::new(access)));
        let is_stuck = Arc::new(AtomicBool::new(false));
        let (kubeconfig, proxies) = (options.kubeconfig.clone(), options.proxies.clone());
        let keeper = Keeper {
            options,
            read,
            servers: servers.clone(),
            latest: latest.clone(),
            is_stuck: is_stuck.clone(),
            files,
            failed: None,
        };
        let (looks, asked) = sync_channel(LOOKS);
        thread::Builder::new()
            .name("credentials".into())
            .stack_size(STACK_BYTES)
            .spawn(move || keeper.run(&asked))
            .map_err(|source| OpenError::Thread { source })?;
        Ok(Self { latest, looks, is_stuck, kubeconfig, looked: Mutex::default(), servers, proxies })
    }

    /// The loaded credentials, without a check of the files.
    pub(super) fn loaded(&self) -> Arc<Access> {
        Arc::clone(&locked(&self.latest))
    }

    /// The credentials as of an earlier check. If that was [`ROUTINE`] ago, the files are checked for the next
    /// request; after a failure they are checked first.
    pub(super) fn recent(&self) -> Arc<Access> {
        let age = locked(&self.looked).map(|looked| looked.elapsed());
        match age {
            None => return self.latest(),
            Some(age) if age < ROUTINE => {}
            Some(_) => drop(self.look()),
        }
        self.loaded()
    }

    /// Orders a check. `None` if too many wait for one.
    fn look(&self) -> Option<Receiver<()>> {
        *locked(&self.looked) = Some(Instant::now());
        let (done, is_done) = sync_channel(1);
        self.looks.try_send(done).is_ok().then_some(is_done)
    }

    /// The access to the server at this place of their order, as it would be used.
    pub(super) fn access_to(&self, at: usize) -> Option<Access> {
        let access = self.loaded();
        let server = self.servers.all(&access.own.server).into_iter().nth(at)?;
        access.at(&server, &self.proxies)
    }

    /// Uses the server at this place from now on; returns its URL.
    pub(super) fn move_to(&self, at: usize) -> Option<String> {
        let mut latest = locked(&self.latest);
        let server = self.servers.all(&latest.own.server).into_iter().nth(at)?;
        let moved = latest.at(&server, &self.proxies)?;
        self.servers.choose(at);
        self.servers.chosen(&moved.own.server);
        let url = moved.url.clone();
        *latest = Arc::new(moved);
        Some(url)
    }

    /// A request failed, perhaps because of its credentials: the next one checks the files.
    pub(super) fn doubt(&self) {
        *locked(&self.looked) = None;
    }

    /// The credentials of the files' present content; of the earlier content if the files do not answer.
    pub(super) fn latest(&self) -> Arc<Access> {
        let is_done = self.look().filter(|_| !self.is_stuck.load(Ordering::Acquire));
        let is_late = is_done.is_some_and(|is_done| is_done.recv_timeout(FILES_LIMIT).is_err());
        if is_late && !self.is_stuck.swap(true, Ordering::AcqRel) {
            log::warn!(
                "kubeconfig {}, or a file it names, was not read within {} s; the credentials loaded before stay in use",
                self.kubeconfig.display(),
                FILES_LIMIT.as_secs()
            );
        }
        self.loaded()
    }
}

/// Checks the files, on its own thread, which ends with the [`Credentials`].
struct Keeper {
    options: ApiOptions,
    read: Arc<ReadFile>,
    servers: Servers,
    latest: Arc<Mutex<Arc<Access>>>,
    is_stuck: Arc<AtomicBool>,
    /// The files behind the loaded credentials.
    files: Vec<FileRead>,
    /// The logged error about newer unusable files, and when to try them again.
    failed: Option<(String, Instant)>,
}

impl Keeper {
    fn run(mut self, asked: &Receiver<Sender<()>>) {
        give_back_stack();
        while let Ok(done) = asked.recv() {
            self.look();
            give_back_stack();
            if self.is_stuck.swap(false, Ordering::AcqRel) {
                log::info!("kubeconfig {} is read again", self.options.kubeconfig.display());
            }
            // the caller may have given up
            let _ = done.try_send(());
        }
    }

    /// An unusable change is logged once, and tried again at the next checks: its correction need not show on
    /// the files known here. It may be in a file that only the new kubeconfig names, or the disk may read
    /// again.
    fn look(&mut self) {
        let access = Arc::clone(&locked(&self.latest));
        let begun = Instant::now();
        if !self.files.iter().any(FileRead::has_changed) {
            self.failed = None;
            return access.look_at_token(&*self.read);
        }
        if self.failed.as_ref().is_some_and(|(_, next)| begun < *next) {
            return access.look_at_token(&*self.read);
        }
        match load(&self.options, &*self.read, Some(&access), &self.servers) {
            Ok((loaded, files)) => {
                log::info!("kubeconfig {} loaded anew", self.options.kubeconfig.display());
                if loaded.server != access.server {
                    log::info!("it names another API server: {}", loaded.url);
                }
                let mut latest = locked(&self.latest);
                if latest.generation != access.generation {
                    // another server was chosen meanwhile: the next check loads the files for that one
                    return;
                }
                (self.files, self.failed) = (files, None);
                *latest = Arc::new(loaded);
            }
            Err(error) => {
                let why = chain(&error);
                if self.failed.as_ref().is_none_or(|(said, _)| *said != why) {
                    log::warn!("{why}; the credentials loaded before stay in use");
                }
                let took = begun.elapsed();
                let pause = if took < FILES_LIMIT { Duration::ZERO } else { took * FAILED_PAUSE };
                self.failed = Some((why, Instant::now() + pause));
                access.look_at_token(&*self.read);
            }
        }
    }
}

/// One loading of the kubeconfig: a way to the server, and our identity there.
pub(super) struct Access {
    /// Counts the loadings.
    pub(super) generation: u64,
    /// Counts the servers that they named: facts from one say nothing about another.
    pub(super) server: u64,
    /// The server's identity: another address or name is another server.
    peer: u64,
    pub(super) own: Own,
    pub(super) route: Arc<Route>,
    /// When it was loaded, if nothing but the credential for the same server changed.
    pub(super) renewed: Option<Instant>,
    pub(super) url: String,
    /// The node that the client certificate is for.
    pub(super) node: Option<String>,
    token: TokenSource,
    token_read: Mutex<TokenRead>,
}

/// The kubeconfig's own server.
#[derive(Clone)]
pub(super) struct Own {
    pub(super) server: ServerAddress,
    name: ServerName<'static>,
    /// The proxy that the kubeconfig names, for each server.
    proxy: Option<ProxyAddress>,
}

/// The token file as last read.
#[derive(Default, Clone)]
struct TokenRead {
    /// `Bearer ...`; the last good reading.
    header: Option<HeaderValue>,
    /// The error in the file's present content.
    problem: Option<String>,
    stamp: Option<Stamp>,
    at: Option<Instant>,
}

/// The server's identity, as one number. Other authorities for the same address and name are not another
/// server: they change in steps over years. (After each change of the kubeconfig every stream lists anew, and
/// a hub that was set up again shows Nodes of other UIDs.)
fn peer_of(url: &str, name: &ServerName<'_>) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    url.hash(&mut hasher);
    name.to_str().hash(&mut hasher);
    hasher.finish()
}

fn load(
    options: &ApiOptions,
    read: &ReadFile,
    before: Option<&Access>,
    servers: &Servers,
) -> Result<(Access, Vec<FileRead>), OpenError> {
    let folder = options.own.as_deref();
    let kubeconfig = in_use::load(&options.kubeconfig, folder, read).map_err(OpenError::Kubeconfig)?;
    let proxy = match kubeconfig.proxy {
        Some(_) => None,
        None => {
            let (host, port) = (&kubeconfig.server.host, kubeconfig.server.port);
            options.proxies.proxy_for(host, port).map_err(|message| OpenError::Proxy { message })?
        }
    };
    let route = Route::new(&kubeconfig, proxy, Arc::clone(&options.clock))
        .map_err(|source| OpenError::Identity { path: options.kubeconfig.clone(), source })?;
    let url = kubeconfig.server.url();
    let own = Own {
        server: kubeconfig.server.clone(),
        name: kubeconfig.server_name.clone(),
        proxy: kubeconfig.proxy.clone(),
    };
    let mut access = Access {
        generation: before.map_or(0, |before| before.generation + 1),
        server: 0,
        peer: peer_of(&url, &own.name),
        own,
        route: Arc::new(route),
        renewed: None,
        url,
        node: node_name::of_kubeconfig(&kubeconfig),
        token: kubeconfig.token,
        token_read: Mutex::default(),
    };
    let chosen = servers.chosen(&access.own.server).1;
    if chosen != access.own.server
        && let Some(there) = access.at(&chosen, &options.proxies)
    {
        access = Access { generation: access.generation, ..there };
    }
    access.server = before.map_or(0, |before| before.server + u64::from(before.peer != access.peer));
    access.renewed = before.is_some_and(|before| before.peer == access.peer).then(Instant::now);
    access.look_at_token(read);
    Ok((access, kubeconfig.files))
}

impl Access {
    /// The same credentials for another server, as another loading.
    fn at(&self, server: &ServerAddress, proxies: &ProxyEnvironment) -> Option<Self> {
        let proxy = match &self.own.proxy {
            Some(proxy) => Some(proxy.clone()),
            None => proxies.proxy_for(&server.host, server.port).ok()?,
        };
        let mut route = self.route.to_peer(server, proxy)?;
        if *server == self.own.server {
            route.server_name = self.own.name.clone();
        }
        let (url, peer) = (server.url(), peer_of(&server.url(), &route.server_name));
        Some(Self {
            generation: self.generation + 1,
            server: self.server + u64::from(peer != self.peer),
            peer,
            own: self.own.clone(),
            route: Arc::new(route),
            renewed: None,
            url,
            node: self.node.clone(),
            token: self.token.clone(),
            token_read: Mutex::new(locked(&self.token_read).clone()),
        })
    }

    /// The `Authorization` header, or `None` if the client certificate is the only credential. Reads no file.
    pub(super) fn authorization(&self) -> Result<Option<HeaderValue>, String> {
        let fallback = match &self.token {
            TokenSource::None => return Ok(None),
            TokenSource::Fixed(token) => return bearer(token).map(Some),
            TokenSource::File { fallback, .. } => fallback,
        };
        let read = locked(&self.token_read);
        // upstream's rule: the last good reading, then the kubeconfig's own token
        match (&read.header, fallback, &read.problem) {
            (Some(header), ..) => Ok(Some(header.clone())),
            (None, Some(token), _) => bearer(token).map(Some),
            (None, None, problem) => Err(problem.clone().unwrap_or_else(|| "no token was read".to_owned())),
        }
    }

    /// Makes the next check read the token file again: the server refused its last content.
    pub(super) fn forget_token(&self) {
        locked(&self.token_read).at = None;
    }

    /// Reads the token file if it changed, or was not read for a while. No request waits for that.
    fn look_at_token(&self, read_file: &ReadFile) {
        let TokenSource::File { path, .. } = &self.token else { return };
        let stamp = Stamp::of(path);
        let is_fresh = |read: &TokenRead| read.at.is_some_and(|at| at.elapsed() < TOKEN_PERIOD);
        let is_known = {
            let read = locked(&self.token_read);
            read.problem.is_none() && read.stamp == stamp && is_fresh(&read)
        };
        if is_known {
            return;
        }
        let found = read_token(path, read_file);
        let mut read = locked(&self.token_read);
        (read.stamp, read.at) = (stamp, Some(Instant::now()));
        match found {
            Ok(header) => (read.header, read.problem) = (Some(header), None),
            Err(why) => read.problem = Some(why),
        }
    }
}

fn read_token(path: &Path, read: &ReadFile) -> Result<HeaderValue, String> {
    let text = read(path, MAX_TOKEN_BYTES).map_err(|error| chain(&error))?;
    let token =
        kubeconfig::checked_token(&text).map_err(|why| format!("token file {} {why}", path.display()))?;
    bearer(&token)
}

fn bearer(token: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| "the token fits no header".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// The inputs of an [`Api`].
pub struct ApiOptions {
    pub kubeconfig: PathBuf,
    /// The folder with the credential that this node renews, which may take the place of the kubeconfig's.
    pub own: Option<PathBuf>,
    /// The clock for the validity of certificates.
    pub clock: WallClock,
    /// The environment's proxies.
    pub proxies: ProxyEnvironment,
}
