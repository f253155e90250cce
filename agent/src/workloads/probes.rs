//! Runs probes and hooks: programs in containers, GET requests, connections, health calls.
//!
//! Always holds: each order starts at once, and is answered within its timeout, or sooner when it is stopped:
//! no process of a stopped program continues in the container, and while a killed process of a probe has not
//! ended, because it waits for a dead disk, no further program of that probe starts; work that waits for the
//! network costs a task and no thread. Nothing here waits on the main thread for longer than the kernel takes
//! to answer. Leaves to others: when a probe runs, how many at once, and the meaning of its result (core).

mod grpc;
mod http;
mod stream;

use crate::beside::beside;
use crate::locks::locked;
use crate::workloads::id_of;
use crate::workloads::probes::stream::OUTPUT_BYTES;
use kedge_core::Event;
use kedge_core::pods::{
    Check, ContainerKey, HookAct, HookOrder, PodEvent, ProbeKey, ProbeOrder, ProbeOutcome, RunKey,
};
use kedge_core::sorted::SortedMap;
use kedge_platform::workloads::{Exec, ExecEnd, LeftProgram, Settings};
use std::convert::Infallible;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use stream::Stream;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// The performer of probes. It belongs to the thread of a tokio runtime.
#[derive(Clone)]
pub(crate) struct Probes(Arc<Shared>);

struct Shared {
    settings: Settings,
    events: Sender<Event>,
    /// Runs under way. Removing one stops it.
    runs: Mutex<SortedMap<RunKey, oneshot::Sender<Infallible>>>,
    /// Killed processes of a probe's last program that had not ended.
    left: Mutex<SortedMap<ProbeKey, LeftProgram>>,
    tls: OnceLock<Arc<rustls::ClientConfig>>,
}

/// Ends when a run is to be stopped.
type Stopped = oneshot::Receiver<Infallible>;

enum Work {
    Probe(ProbeOrder),
    Hook(HookOrder),
}

impl Work {
    fn key(&self) -> RunKey {
        match self {
            Self::Probe(order) => RunKey::Probe(order.key.clone()),
            Self::Hook(order) => RunKey::Hook(order.container.clone(), order.kind),
        }
    }
}

impl Probes {
    pub(crate) fn new(settings: Settings, events: Sender<Event>) -> Self {
        let (runs, left, tls) = (Mutex::default(), Mutex::default(), OnceLock::new());
        Self(Arc::new(Shared { settings, events, runs, left, tls }))
    }

    /// Starts it, without waiting.
    pub(crate) fn run(&self, order: ProbeOrder) {
        self.begin(Work::Probe(order));
    }

    /// The same for a hook.
    pub(crate) fn run_hook(&self, order: HookOrder) {
        self.begin(Work::Hook(order));
    }

    /// Begins to stop it.
    pub(crate) fn stop(&self, run: &RunKey) {
        locked(&self.0.runs).remove(run);
    }

    fn begin(&self, work: Work) {
        let (key, probes) = (work.key(), self.clone());
        let (goes_on, mut stopped) = oneshot::channel();
        locked(&self.0.runs).insert(key.clone(), goes_on);
        tokio::spawn(async move {
            let done = probes.perform(&work, &mut stopped).await;
            locked(&probes.0.runs).remove(&key);
            let event = done.unwrap_or(PodEvent::RunStopped(key));
            let _ = probes.0.events.send(Event::Pods(Box::new(event))).await;
        });
    }

    /// `None` if it was stopped.
    async fn perform(&self, work: &Work, stopped: &mut Stopped) -> Option<PodEvent> {
        Some(match work {
            Work::Probe(order) => {
                let outcome = self.probe(order, stopped).await?;
                PodEvent::Probed { probe: order.key.clone(), outcome }
            }
            Work::Hook(order) => {
                let done = self.hook(order, stopped).await?;
                PodEvent::HookEnded { container: order.container.clone(), kind: order.kind, done }
            }
        })
    }

    async fn probe(&self, order: &ProbeOrder, stopped: &mut Stopped) -> Option<ProbeOutcome> {
        let ProbeOrder { key, check, timeout } = order;
        match check {
            Check::Exec { command } => {
                if let Some(pid) = self.left_of(key) {
                    return Some(ProbeOutcome::Failed(not_begun(command, pid)));
                }
                let (done, left) = match self.exec(&key.container, command, *timeout, stopped).await {
                    Ok((end, left)) => (Ok(end), left),
                    Err(why) => (Err(why), None),
                };
                if let Some(left) = left {
                    locked(&self.0.left).insert(key.clone(), left);
                }
                of_exec(command, *timeout, done)
            }
            check => unless(stopped, self.connect(check, *timeout)).await,
        }
    }

    /// A killed process of the probe's last program that has not ended.
    fn left_of(&self, key: &ProbeKey) -> Option<i32> {
        let mut left = locked(&self.0.left);
        // also those of other probes: their containers may be gone
        left.retain(|_, left| left.still_there().is_some());
        left.get(key)?.still_there()
    }

    async fn connect(&self, check: &Check, timeout: Duration) -> ProbeOutcome {
        let end = Instant::now() + timeout;
        match check {
            Check::Exec { .. } => ProbeOutcome::Errored("a program is no connection".into()),
            Check::Http(check) => http::probe(check, end, &|| self.tls()).await,
            Check::Tcp { host, port } => match timeout_at(end, Stream::connect(host, *port)).await {
                Ok(Ok(_)) => ProbeOutcome::Passed,
                Ok(Err(why)) => ProbeOutcome::Failed(why),
                Err(_) => {
                    ProbeOutcome::Failed(format!("dial tcp {}: i/o timeout", stream::shown(host, *port)))
                }
            },
            Check::Grpc { host, port, service } => {
                match timeout_at(end, grpc::check(host, *port, service)).await {
                    Ok(outcome) => outcome,
                    Err(_) => ProbeOutcome::Failed(format!(
                        "timeout: health rpc to {:?} did not complete within {}",
                        stream::shown(host, *port),
                        seconds(timeout)
                    )),
                }
            }
        }
    }

    /// As upstream: a program has to end with code 0, a request to get an answer.
    async fn hook(&self, order: &HookOrder, stopped: &mut Stopped) -> Option<Result<(), String>> {
        let limit = order.timeout;
        match &order.act {
            HookAct::Sleep(time) => {
                tokio::time::sleep((*time).min(limit)).await;
                Some(Ok(()))
            }
            HookAct::Run(Check::Exec { command }) => {
                let done = self.exec(&order.container, command, limit, stopped).await;
                Some(match of_exec(command, limit, done.map(|(end, _)| end))? {
                    ProbeOutcome::Passed | ProbeOutcome::Warned(_) => Ok(()),
                    ProbeOutcome::Failed(why) | ProbeOutcome::Errored(why) => Err(why),
                })
            }
            HookAct::Run(Check::Http(check)) => {
                let end = Instant::now() + limit;
                unless(stopped, http::get(check, end, &|| self.tls())).await.map(|done| done.map(drop))
            }
            HookAct::Run(Check::Tcp { .. } | Check::Grpc { .. }) => {
                Some(Err("no hook opens a connection".into()))
            }
        }
    }

    async fn exec(
        &self,
        container: &ContainerKey,
        command: &[String],
        limit: Duration,
        stopped: &mut Stopped,
    ) -> Result<(ExecEnd, Option<LeftProgram>), String> {
        let (id, command) = (id_of(container), command.to_vec());
        let settings = self.0.settings.clone();
        let (stop, goes_on) =
            std::io::pipe().map_err(|error| format!("the program was not run: no pipe: {error}"))?;
        let run = move || {
            let stop = Some(stop.as_fd());
            let exec = Exec { id: &id, command: &command, limit, output_bytes: OUTPUT_BYTES, stop };
            exec.run(&settings).map_err(|error| error.to_string())
        };
        // the fork may wait for a disk: not on this thread
        let mut run = std::pin::pin!(beside(run));
        let done = tokio::select! {
            done = &mut run => done,
            _ = stopped => {
                drop(goes_on);
                // its place is free once its program has ended
                run.await
            }
        };
        done.unwrap_or_else(|error| Err(format!("the program was not run: {error}")))
    }

    /// Made once: it loads what TLS needs.
    fn tls(&self) -> Result<Arc<rustls::ClientConfig>, String> {
        if let Some(tls) = self.0.tls.get() {
            return Ok(tls.clone());
        }
        let made = stream::unverified_tls().map_err(|error| format!("no TLS: {error}"))?;
        Ok(self.0.tls.get_or_init(|| made).clone())
    }
}

/// Why a program of a probe is not started.
fn not_begun(command: &[String], pid: i32) -> String {
    let command = kedge_api::excerpt_of(&command.join(" "), 200);
    format!(
        "command {command:?} was not run: process {pid} of its last run was killed and does not end, it waits for a disk or a server"
    )
}

/// `None` if it was stopped before.
async fn unless<T>(stopped: &mut Stopped, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        done = work => Some(done),
        _ = stopped => None,
    }
}

/// `None` if it was stopped.
fn of_exec(command: &[String], limit: Duration, done: Result<ExecEnd, String>) -> Option<ProbeOutcome> {
    Some(match done {
        Ok(ExecEnd::Ended { code: 0, .. }) => ProbeOutcome::Passed,
        Ok(ExecEnd::Ended { output, .. }) => {
            ProbeOutcome::Failed(String::from_utf8_lossy(&output).into_owned())
        }
        Ok(ExecEnd::TimedOut) => {
            let command = kedge_api::excerpt_of(&command.join(" "), 200);
            ProbeOutcome::Failed(format!("command {command:?} timed out after {}", seconds(limit)))
        }
        Ok(ExecEnd::Stopped) => return None,
        Err(why) => ProbeOutcome::Errored(why),
    })
}

/// The outcome of an HTTP probe for the answer on this connection, and the path of its redirect; for the
/// fuzzer. The connection must end by itself.
pub async fn http_answered(socket: impl AsyncRead + AsyncWrite + Unpin) -> (ProbeOutcome, Option<String>) {
    // no input takes that long
    http::answered(socket, Instant::now() + Duration::from_secs(3600)).await
}

/// The same for a health call.
pub async fn grpc_answered(socket: impl AsyncRead + AsyncWrite + Unpin) -> ProbeOutcome {
    grpc::answered(socket).await
}

fn seconds(limit: Duration) -> String {
    format!("{}s", limit.as_secs_f32())
}

#[cfg(test)]
mod tests;
