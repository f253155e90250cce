//! Runs probes and hooks: programs in containers, GET requests, connections, health calls.
//!
//! Always holds: each order is answered, within its timeout once it has begun; a probe that hangs holds up none of another pod, nor
//! more than a few of its own; what waits for the network costs a task and no thread. Nothing here waits on the main thread for
//! longer than the kernel takes to answer. Leaves to others: when a probe runs and what its result means (core).

mod grpc;
mod http;
mod places;
mod stream;

use crate::beside::beside;
use crate::workloads::id_of;
use kedge_core::Event;
use kedge_core::pods::{Check, ContainerKey, HookAct, HookOrder, PodEvent, PodUid, ProbeOrder, ProbeOutcome};
use kedge_platform::workloads::{Exec, ExecEnd, Settings};
use places::{Lane, Places};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use stream::Stream;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, timeout_at};

/// How much of an output or a body is kept: upstream's limit.
const OUTPUT_BYTES: usize = 10 * 1024;

/// The performer of probes. Belongs to the thread of a tokio runtime.
#[derive(Clone)]
pub(crate) struct Probes(Arc<Shared>);

struct Shared {
    settings: Settings,
    events: Sender<Event>,
    places: Mutex<Places<Work>>,
    tls: OnceLock<Arc<rustls::ClientConfig>>,
}

/// What takes a place.
enum Work {
    Probe(ProbeOrder),
    /// With the end of its time, which began with the order.
    Hook(HookOrder, Instant),
}

impl Work {
    fn pod(&self) -> &PodUid {
        match self {
            Self::Probe(order) => &order.key.container.pod,
            Self::Hook(order, _) => &order.container.pod,
        }
    }

    fn lane(&self) -> Lane {
        match self {
            Self::Probe(ProbeOrder { check: Check::Exec { .. }, .. }) => Lane::Program,
            Self::Probe(_) => Lane::Network,
            Self::Hook(..) => Lane::Hook,
        }
    }
}

impl Probes {
    pub(crate) fn new(settings: Settings, events: Sender<Event>) -> Self {
        let (places, tls) = (Mutex::default(), OnceLock::new());
        Self(Arc::new(Shared { settings, events, places, tls }))
    }

    /// Begins, as soon as there is a place. Waits for nothing.
    pub(crate) fn run(&self, order: ProbeOrder) {
        self.put(Work::Probe(order));
    }

    /// The same of a hook.
    pub(crate) fn run_hook(&self, order: HookOrder) {
        let end = Instant::now() + order.timeout;
        self.put(Work::Hook(order, end));
    }

    fn put(&self, work: Work) {
        let begun = self.places().take(work.lane(), work.pod().clone(), work);
        if let Some(work) = begun {
            self.begin(work);
        }
    }

    fn begin(&self, work: Work) {
        let probes = self.clone();
        tokio::spawn(async move {
            let event = match &work {
                Work::Probe(order) => {
                    let outcome = probes.outcome(order).await;
                    PodEvent::Probed { probe: order.key.clone(), outcome }
                }
                Work::Hook(order, end) => {
                    let done = probes.hook(order, *end).await;
                    PodEvent::HookEnded { container: order.container.clone(), kind: order.kind, done }
                }
            };
            // the place goes first: what hears of the result may order the next run
            let next = probes.places().give_back(work.lane(), work.pod());
            if let Some(next) = next {
                probes.begin(next);
            }
            let _ = probes.0.events.send(Event::Pods(Box::new(event))).await;
        });
    }

    fn places(&self) -> std::sync::MutexGuard<'_, Places<Work>> {
        self.0.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn outcome(&self, order: &ProbeOrder) -> ProbeOutcome {
        let end = Instant::now() + order.timeout;
        match &order.check {
            Check::Exec { command } => {
                let done = self.exec(&order.key.container, command, order.timeout).await;
                of_exec(command, order.timeout, done)
            }
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
                        seconds(order.timeout)
                    )),
                }
            }
        }
    }

    /// As upstream: a program has to end with code 0, a request to be answered.
    async fn hook(&self, order: &HookOrder, end: Instant) -> Result<(), String> {
        let limit = end.saturating_duration_since(Instant::now());
        if limit.is_zero() {
            return Err("its time was over before there was a place for it".into());
        }
        match &order.act {
            HookAct::Sleep(time) => {
                tokio::time::sleep((*time).min(limit)).await;
                Ok(())
            }
            HookAct::Run(Check::Exec { command }) => {
                let done = self.exec(&order.container, command, limit).await;
                match of_exec(command, limit, done) {
                    ProbeOutcome::Passed | ProbeOutcome::Warned(_) => Ok(()),
                    ProbeOutcome::Failed(why) | ProbeOutcome::Errored(why) => Err(why),
                }
            }
            HookAct::Run(Check::Http(check)) => http::get(check, end, &|| self.tls()).await.map(drop),
            HookAct::Run(Check::Tcp { .. } | Check::Grpc { .. }) => Err("no hook opens a connection".into()),
        }
    }

    async fn exec(
        &self,
        container: &ContainerKey,
        command: &[String],
        limit: Duration,
    ) -> Result<ExecEnd, String> {
        let (id, command) = (id_of(container), command.to_vec());
        let settings = self.0.settings.clone();
        let run = move || {
            let exec = Exec { id: &id, command: &command, limit, output_bytes: OUTPUT_BYTES };
            exec.run(&settings).map_err(|error| error.to_string())
        };
        // it forks, and may wait for a disk: not on this thread
        beside(run).await.unwrap_or_else(|error| Err(format!("the program was not run: {error}")))
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

fn of_exec(command: &[String], limit: Duration, done: Result<ExecEnd, String>) -> ProbeOutcome {
    match done {
        Ok(ExecEnd::Ended { code: 0, .. }) => ProbeOutcome::Passed,
        Ok(ExecEnd::Ended { output, .. }) => {
            ProbeOutcome::Failed(String::from_utf8_lossy(&output).into_owned())
        }
        Ok(ExecEnd::TimedOut) => {
            let command = kedge_api::excerpt_of(&command.join(" "), 200);
            ProbeOutcome::Failed(format!("command {command:?} timed out after {}", seconds(limit)))
        }
        Err(why) => ProbeOutcome::Errored(why),
    }
}

/// What an HTTP probe makes of the answer that a connection gives, and the path that it leads to; for the fuzzer. The connection must
/// end by itself.
pub async fn http_answered(socket: impl AsyncRead + AsyncWrite + Unpin) -> (ProbeOutcome, Option<String>) {
    // no input takes that long
    http::answered(socket, Instant::now() + Duration::from_secs(3600)).await
}

/// The same of a health call.
pub async fn grpc_answered(socket: impl AsyncRead + AsyncWrite + Unpin) -> ProbeOutcome {
    grpc::answered(socket).await
}

fn seconds(limit: Duration) -> String {
    format!("{}s", limit.as_secs_f32())
}

#[cfg(test)]
mod tests;
