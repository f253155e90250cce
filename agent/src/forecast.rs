//! A forecast of the agent's next start, while none runs: the decision of a start over the present records.
//!
//! Always holds: core itself decides, and nothing is written: a write of that start counts as done. So `kedge
//! config status` without an agent says what will run, by the very rules of a start. Leaves to others:
//! reading one record (`perform::disk`).

use crate::net::known_server::KnownServer;
use crate::options::AgentOptions;
use crate::perform::disk::{DiskHealth, DiskLoop, DiskOrder, KnownIdentity};
use crate::perform::quota::Quota;
use crate::{VERSION, local_config, run};
use kedge_core::{Action, Core, Event, Options, Outcome, Report, Step};
use kedge_platform::linux::{self, LinuxClocks, LinuxHost, Roots};
use kedge_platform::{Clocks as _, RunDirectory};
use std::sync::Arc;

/// The report that the agent would give after its start.
///
/// # Errors
/// It would refuse to start, or this user cannot read the records.
pub(crate) fn next_start(options: &AgentOptions) -> Result<Report, String> {
    let directory = &options.places.dynamic_config_dir;
    if let Err(error) = std::fs::read_dir(directory)
        && error.kind() == std::io::ErrorKind::PermissionDenied
    {
        return Err(format!("read {}: {error}; ask as root", directory.display()));
    }
    let refused = |why: String| format!("the next start would refuse: {why}");
    let layers = local_config::read(&options.local).map_err(|error| refused(error.to_string()))?;
    let roots = Roots::default();
    let clocks = LinuxClocks::new(&roots);
    let run_dir = RunDirectory::new(&options.places.run_dir);
    let previous =
        linux::previous_exit(linux::files(&options.places.root_dir), roots.clone()).beside(run_dir.clone());
    let previous_run = run::previous_run(&previous, run_dir.next_run());
    let node_name = options.node_name.clone().unwrap_or_default();
    let now = run::wall_now(&clocks);
    let mut core = Core::new(
        Options {
            node_name: node_name.clone(),
            version: VERSION.into(),
            local: layers,
            dynamic_config: options.dynamic_config,
            node_labels: options.node_labels.clone(),
            slot: None,
            slots: None,
            decommission: None,
            boot_id: clocks.boot_id().to_owned(),
            previous_run,
            seed: 1,
        },
        now,
    )
    .map_err(|error| refused(error.report()))?;
    let mut disk = DiskLoop {
        files: linux::files(directory),
        root_files: linux::files(&options.places.root_dir),
        beside: Vec::new(),
        previous: Box::new(previous),
        host: Box::new(LinuxHost::new(roots, &options.places.root_dir)),
        identity: KnownIdentity::default(),
        version: VERSION.into(),
        node_name,
        bad_configs: None,
        bad_configs_unreadable: None,
        health: Arc::new(DiskHealth::default()),
        server: KnownServer::default(),
        state_places: Default::default(),
        credential: None,
        quota: Quota::default(),
        runtime: None,
        read_only: Some("a forecast changes nothing".into()),
        is_image: false,
        was_displaced: run::was_displaced(&options.places),
        // a forecast changes nothing
        _claim: None,
    };
    disk.take_over();
    let mut event = Event::Start;
    loop {
        let mut actions = Vec::new();
        core.handle(now, event, &mut actions);
        if let Some(report) = core.report(now) {
            return Ok(report);
        }
        let step = actions.into_iter().find_map(|action| match action {
            Action::Step(step) => Some(step),
            _ => None,
        });
        event = match step {
            Some(step @ Step::Read(_)) => match disk.perform(DiskOrder::Step(step)) {
                Some(event) => event,
                None => return Err("a record was not read".into()),
            },
            Some(_) => Event::StepDone(Outcome::Done(Ok(()))),
            None => return Err("the start decided nothing".into()),
        };
    }
}
