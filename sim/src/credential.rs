//! The credential of one node: its files, and the authority that signs for it.
//!
//! Always holds: each step is one durable change, so the power can be cut between any two. A certificate that
//! has ended is refused everything but a request for its own key, if that is the newest. Two keys are never
//! asked about at once. Leaves to others: which step the node takes when (core).

use kedge_core::identity::{Asked, By, Certificate, Found, Given, IdentityAction, IdentityEvent, Key, Step};
use std::collections::BTreeMap;

/// See the module.
#[derive(Debug, Clone)]
pub struct Credential {
    pub files: Found,
    /// The pending order of the agent.
    pub order: Option<IdentityAction>,
    /// How long certificates last, in seconds.
    pub life: u64,
    /// Whether requests are approved.
    pub approves: bool,
    /// By how many seconds the server's clock is ahead of the node's.
    pub server_ahead: i64,
    /// The certificates, by the names of their requests; `None` while one waits.
    requests: BTreeMap<String, (String, Option<Certificate>)>,
    keys: u32,
    /// The last number, and its key.
    newest: (u64, String),
    /// How many certificates became current.
    pub installed: u32,
}

impl Credential {
    /// A node with nothing but a token.
    pub fn joining(seed: u64, life: u64) -> Self {
        Self {
            files: Found { can_join: true, ..Found::default() },
            order: None,
            life,
            approves: true,
            server_ahead: 0,
            requests: BTreeMap::new(),
            // keys differ between nodes, and with them the moments of renewal
            keys: u32::try_from(seed % 1000).expect("below") * 1000,
            newest: (0, String::new()),
            installed: 0,
        }
    }

    /// Whether the server refuses the node, at this time by the node's clock.
    pub fn is_refused(&self, wall: u64) -> bool {
        let wall = wall.saturating_add_signed(self.server_ahead);
        self.files.current.as_ref().is_none_or(|current| current.not_after <= wall)
    }

    /// Performs the pending order, at this time by the node's clock.
    pub fn perform(&mut self, wall: u64, link: bool) -> Option<IdentityEvent> {
        let wall = wall.saturating_add_signed(self.server_ahead);
        Some(match self.order.take()? {
            IdentityAction::Step(Step::Look) => IdentityEvent::Found(Box::new(self.files.clone())),
            IdentityAction::Step(Step::Prepare(key, by)) => {
                let serial = self.files.current.as_ref().map(|current| current.serial.clone());
                let salt = if by == By::Own { serial.unwrap_or_default() } else { "token".into() };
                let key = self.key(key);
                IdentityEvent::Prepared(Ok((format!("{key}-{salt}"), key)))
            }
            IdentityAction::Step(step) => {
                self.change(step);
                IdentityEvent::Done(Ok(()))
            }
            IdentityAction::Ask { .. } if !link => IdentityEvent::Asked(Asked::Failed("no route".into())),
            IdentityAction::Ask { by, name, request } => {
                IdentityEvent::Asked(self.ask(by, &name, &request, wall))
            }
        })
    }

    fn key(&self, key: Key) -> String {
        let current = || self.files.current.as_ref().map(|current| current.key.clone());
        let found = if key == Key::Next { self.files.next.clone() } else { current() };
        found.expect("a key that is there")
    }

    fn change(&mut self, step: Step) {
        let files = &mut self.files;
        match step {
            Step::MakeKey => {
                assert_eq!(files.next, None, "a key over a key");
                self.keys += 1;
                files.next = Some(format!("{:02x}{}", self.keys * 97 % 256, self.keys));
            }
            Step::WriteKubeconfig => files.has_generated = true,
            Step::Keep { serial, .. } => {
                let issued = self.requests.values().filter_map(|(_, issued)| issued.as_ref());
                let found = issued.clone().find(|issued| issued.serial == serial);
                files.kept.push(found.expect("it was issued").clone());
            }
            Step::Point(serial) => {
                let kept = files.kept.iter().find(|kept| kept.serial == serial);
                files.current = Some(kept.expect("it is kept").clone());
                self.installed += 1;
            }
            Step::RemoveKey => files.next = None,
            Step::Remove(serial) => {
                let current = files.current.as_ref().expect("there is another");
                assert_ne!(current.serial, serial, "the one in use stays");
                files.kept.retain(|kept| kept.serial != serial);
            }
            Step::SaveRunning(serial, secs) => files.running = Some((serial, secs)),
            Step::RemoveToken | Step::SetAside(..) | Step::Look | Step::Prepare(..) => {
                panic!("nothing here calls for {step:?}")
            }
        }
        assert!(files.given == Given::Nothing && files.kept.len() <= 3);
    }

    fn ask(&mut self, by: By, name: &str, key: &str, wall: u64) -> Asked {
        let is_other = |(other, issued): &(String, Option<Certificate>)| issued.is_none() && other != key;
        let others = self.requests.values().filter(|request| is_other(request));
        let others = others.count();
        let (_, issued) = self.requests.entry(name.to_owned()).or_insert((key.to_owned(), None));
        let is_expired =
            by == By::Own && self.files.current.as_ref().is_some_and(|own| own.not_after <= wall);
        // one that has ended may have made a key that the server never heard of
        assert!(is_expired || others == 0, "two keys are asked about at once");
        let is_approved = self.approves && (!is_expired || self.newest.1 == key);
        if issued.is_none() && is_approved {
            self.newest = (self.newest.0 + 1, key.to_owned());
            let number = self.newest.0;
            *issued = Some(Certificate {
                serial: format!("{number:02x}"),
                number,
                issued: wall,
                not_after: wall + self.life,
                key: key.to_owned(),
                id: format!("id-{number}"),
                issuer: "hub".into(),
                replaces: None,
            });
        }
        match issued {
            Some(issued) => Asked::Issued(Box::new(issued.clone()), b"pem".to_vec()),
            None => Asked::Waits(None),
        }
    }
}
