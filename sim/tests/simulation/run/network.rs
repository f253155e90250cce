//! The network of a run: the fate of requests and renewals, and the news of watches; late, lost, stale or
//! wrong.

use super::*;

impl Simulation {
    pub(super) fn nature(&self) -> Nature {
        let used = self.world.process.as_ref().and_then(|process| process.used);
        used.and_then(|pods| with_pods(&self.designs, pods))
            .map_or(Nature::Good, |design| design.nature(self.drop_in))
    }

    /// Whether requests can reach the server.
    pub(crate) fn link(&self) -> bool {
        self.world.link && self.nature() != Nature::LosesContact
    }

    pub(super) fn do_facts(&mut self) -> Check {
        if self.world.do_facts() {
            self.hit("event", "HostFacts");
        }
        self.observe()
    }

    /// The fate of a request: `None` if the server answers it.
    pub(super) fn network_fault(&mut self) -> Option<Answer> {
        if !self.link() {
            return Some(Answer::Failed("no route to host".into()));
        }
        if self.mode != Mode::All || self.settling || self.stalled {
            return None;
        }
        match self.network {
            Network::HalfDead if self.random.percent(90) => {
                self.hit("fault", "half-dead network");
                return Some(Answer::Failed("timed out".into()));
            }
            Network::Busy if self.random.percent(80) => {
                self.hit("fault", "answer 503");
                let retry_after = self.random.percent(50).then_some(Duration::from_secs(30));
                let (reason, message) = ("ServiceUnavailable".to_owned(), "starting".to_owned());
                return Some(Answer::Refused { status: 503, reason, message, retry_after });
            }
            _ => {}
        }
        let (name, answer) = match self.random.below(40) {
            0 => ("answer lost", Answer::Failed("timed out".into())),
            1 => ("answer 401", refused(401, "Unauthorized", "Unauthorized")),
            2 => {
                let retry_after = Some(Duration::from_secs(self.random.below(100_000)));
                let message = "too many requests".to_owned();
                let reason = "TooManyRequests".to_owned();
                ("answer 429", Answer::Refused { status: 429, reason, message, retry_after })
            }
            3 => ("answer 500", refused(500, "InternalError", "etcdserver: request timed out")),
            4 => ("answer 410", refused(410, "Expired", "too old resource version")),
            _ => return None,
        };
        self.hit("fault", name);
        Some(answer)
    }

    /// A renewal was answered.
    fn note_renewal(&mut self, answer: &Answer) {
        if matches!(answer, Answer::Accepted(_)) {
            let now = self.world.mono();
            self.model.renewed(now, &self.designs);
        }
    }

    pub(super) fn do_request(&mut self) -> Check {
        let Some(request) = self.world.process.as_ref().and_then(|process| process.requests.first().cloned())
        else {
            return Ok(());
        };
        // Events may wait for hours, so each is counted where its cause is
        if !matches!(request, Request::PostEvent(_)) {
            *self.requests.entry(request.key()).or_default() += 1;
        }
        let answer = match self.network_fault() {
            None if self.settling && self.mutant == Some(Mutant::AnswersLost) => {
                self.world.hub.answer(NODE, &request);
                Answer::Failed("timed out".into())
            }
            Some(Answer::Failed(why)) => {
                // it may have arrived all the same
                if self.link() && self.random.percent(50) {
                    self.world.hub.answer(NODE, &request);
                }
                Answer::Failed(why)
            }
            Some(answer) => answer,
            None if self.mutant == Some(Mutant::StatusDropped)
                && matches!(request, Request::PatchStatus(_) | Request::PatchNode(_)) =>
            {
                Answer::Accepted(None)
            }
            None => self.world.hub.answer(NODE, &request),
        };
        self.trace(|| format!("  {:?}: {answer}", request.key()));
        self.hit("event", "Answered");
        self.events += 1;
        self.world.do_request(Some(answer));
        self.observe()
    }

    pub(super) fn do_renewal(&mut self) -> Check {
        let Some((request, _)) = self.world.process.as_ref().and_then(|process| process.renewal.clone())
        else {
            return Ok(());
        };
        let mut latest = None;
        let answer = match self.network_fault() {
            Some(answer) => answer,
            None if self.settling && self.mutant == Some(Mutant::RenewalsDropped) => Answer::Accepted(None),
            None => {
                self.renewed_at = self.world.time;
                latest = self.world.hub.desired(NODE);
                self.world.hub.renew(NODE, &request)
            }
        };
        self.trace(|| format!("  renewal: {answer}"));
        self.hit("event", "Renewed");
        self.events += 1;
        self.note_renewal(&answer);
        let is_believed = self.mutant == Some(Mutant::ContactWithoutAnswer);
        self.world.answer_renewal(if is_believed { Answer::Accepted(None) } else { answer }, latest);
        self.observe()
    }

    pub(super) fn do_watches(&mut self) -> Check {
        if !self.shows_news() || self.world.exited() {
            return Ok(());
        }
        if let Some(node) = self.world.watch_node() {
            self.hit("event", if node.is_null() { "NodeGone" } else { "NodeSeen" });
            self.events += 1;
            self.trace(|| format!("  sees its Node: source {}", source_of(&node)));
            self.remember_node(node);
            self.observe()?;
        }
        let name = self.world.process.as_ref().and_then(|process| process.watched.clone());
        let downloads = self.world.downloads;
        let shown = if self.world.exited() { None } else { self.world.watch_map() };
        if let Some(map) = shown {
            let name_of_event = match self.world.downloads == downloads {
                _ if map.is_null() => "ConfigMapGone",
                true => "ConfigMapUnchanged",
                false => "ConfigMapSeen",
            };
            self.hit("event", name_of_event);
            self.events += 1;
            self.trace(|| {
                let uid = if map.is_null() { "gone" } else { text(&map, "/metadata/uid") };
                format!("  sees ConfigMap {name:?}: {uid}")
            });
            if let (Some((_, name)), false) = (name, map.is_null()) {
                self.old_maps.push((name, map));
            }
        }
        self.observe()
    }

    /// A server, or a proxy before it, ends the watches that have shown everything. Returns whether there was
    /// one.
    pub(super) fn end_watches(&mut self) -> bool {
        if self.network != Network::Ending || !self.link() || self.world.exited() {
            return false;
        }
        let lived =
            if self.mutant == Some(Mutant::WatchesLive) { LONG_FAULT } else { Duration::from_millis(5) };
        let ended =
            (WatchFailure::Unreachable, "the server ended the watch at once, without an event".to_owned());
        let end = WatchEnd { lived, failure: Some(ended), ..WatchEnd::default() };
        let any =
            [Watched::Node, Watched::ConfigMap].map(|watched| self.world.end_watch(watched, end.clone()));
        self.events += any.iter().map(|ended| u64::from(*ended)).sum::<u64>();
        any.contains(&true)
    }

    pub(super) fn remember_node(&mut self, node: Value) {
        if !node.is_null() {
            self.old_nodes.push(node);
        }
        if self.old_nodes.len() > 8 {
            self.old_nodes.remove(0);
        }
        if self.old_maps.len() > 8 {
            self.old_maps.remove(0);
        }
    }

    pub(super) fn change_link(&mut self) -> Check {
        if self.mode == Mode::All && self.random.percent(50) {
            let all = [Network::Fine, Network::HalfDead, Network::Silent, Network::Busy, Network::Ending];
            self.network = *self.random.pick(&all);
            match self.network {
                Network::Silent => self.hit("fault", "silent watches"),
                Network::Ending => self.hit("fault", "watches that end at once"),
                _ => {}
            }
            let network = self.network;
            self.trace(|| format!("THE NETWORK IS {network:?}"));
            return Ok(());
        }
        if self.world.link {
            if self.mode == Mode::CutsOnly || (self.mode == Mode::OneOutage && self.outages_left == 0) {
                return Ok(());
            }
            self.outages_left = self.outages_left.saturating_sub(1);
            self.hit("fault", "link down");
        }
        self.world.link = !self.world.link;
        let up = self.world.link;
        self.trace(|| format!("THE LINK IS {}", if up { "UP" } else { "DOWN" }));
        Ok(())
    }

    /// Does one thing that a bad network or server does: shows an old object, ends a watch, delivers a late
    /// request, or changes the server.
    pub(super) fn disturb(&mut self) -> Check {
        if !self.link() {
            return Ok(());
        }
        match self.random.below(13) {
            0 | 1 if !self.old_nodes.is_empty() => {
                let node = self.random.pick(&self.old_nodes).clone();
                self.hit("fault", "stale node");
                self.trace(|| format!("  STALE Node: source {}", source_of(&node)));
                // the agent may adopt the old assignment, which resets the counts as any new one does
                self.model.forget_crashes();
                self.handle("NodeSeen", node_event(&node));
                self.world.list_again();
            }
            2 | 3 if !self.old_maps.is_empty() => {
                self.show_stale_config_map();
            }
            4 if !self.old_maps.is_empty() => {
                self.show_wrong_uid();
            }
            5 => {
                self.hit("event", "WatchEnded");
                self.trace(|| "  may not read the ConfigMap".into());
                let name = *self.random.pick(&MAPS);
                let watched = self.world.process.as_ref().and_then(|process| process.watched.as_ref());
                if watched.is_some_and(|(_, watched)| watched == name) {
                    self.world.refuse_map("403 forbidden");
                }
                self.world.list_again();
            }
            6 => {
                self.handle("Contact", Event::Contact);
            }
            7 => {
                self.change_server();
            }
            8 => {
                let read = self.world.read_bad_configs();
                self.handle("BadConfigsRead", Event::BadConfigsRead(read));
            }
            9 | 10 if !self.orphans.is_empty() => {
                let request = self.orphans.remove(0);
                self.hit("fault", "executed after a restart");
                self.trace(|| format!("  a request of a dead agent ARRIVES: {:?}", request.key()));
                self.world.hub.answer(NODE, &request);
            }
            11 if !self.old_nodes.is_empty() => {
                self.show_another_nodes_node();
            }
            _ => {
                self.hit("fault", "watch expired");
                self.trace(|| "  lost its watches".into());
                self.world.list_again();
            }
        }
        self.observe()
    }

    fn show_stale_config_map(&mut self) {
        let (name, map) = self.random.pick(&self.old_maps).clone();
        self.hit("fault", "stale config map");
        self.trace(|| format!("  STALE ConfigMap {name} {}", text(&map, "/metadata/resourceVersion")));
        self.model.forget_crashes();
        self.handle("ConfigMapSeen", map_event(NAMESPACE, &name, map));
        self.world.list_again();
    }

    fn show_wrong_uid(&mut self) {
        let (name, mut map) = self.random.pick(&self.old_maps).clone();
        self.hit("fault", "wrong uid");
        self.trace(|| format!("  ConfigMap {name} with a WRONG UID"));
        self.model.forget_crashes();
        map["metadata"]["uid"] = json!("no-such-uid");
        self.handle("ConfigMapSeen", map_event(NAMESPACE, &name, map));
        self.world.list_again();
    }

    fn change_server(&mut self) {
        self.trace(|| "  ANOTHER SERVER".into());
        if self.random.percent(50) {
            self.rebuild_hub();
        }
        let on_their_way = self.world.process.as_ref().map_or(0, |process| process.requests.len());
        self.hit("event", "Heard");
        self.world.change_server();
        // requests to the old server fail late
        for _ in 0..on_their_way {
            self.world.do_request(Some(Answer::Failed("the old server is gone".into())));
        }
    }

    /// The other server has objects of the same names with other UIDs and payloads, and perhaps assigns one
    /// of them.
    fn rebuild_hub(&mut self) {
        self.hit("fault", "another server with other objects");
        self.model.forget_crashes();
        let (flavour, counter) = (self.world.hub.flavour, self.world.hub.counter());
        self.world.hub = Hub::new(flavour);
        self.world.hub.wiped(counter);
        self.world.hub.create_node(NODE);
        for name in MAPS {
            let design = self.random.pick(&self.designs).clone();
            self.world.hub.push(name, &design.payload);
        }
        let name = *self.random.pick(&MAPS);
        if self.random.percent(50) {
            self.world.hub.assign(Hub::following(name));
        }
        self.trace(|| format!("  with other objects; it asks for {name} or nothing"));
    }

    fn show_another_nodes_node(&mut self) {
        let mut node = self.random.pick(&self.old_nodes).clone();
        node["metadata"]["uid"] = json!("uid-of-edge-2");
        if self.mutant != Some(Mutant::AnothersNode) {
            node["metadata"]["name"] = json!("edge-2");
        }
        match self.world.hub.flavour {
            Flavour::Kedge => node["spec"]["configSource"] = Hub::following(ANOTHERS_MAP),
            Flavour::Kubernetes => {
                let text = Hub::following(ANOTHERS_MAP).to_string();
                node["metadata"]["annotations"] = json!({kedge_api::CONFIG_SOURCE_ANNOTATION: text});
            }
        }
        self.hit("fault", "another node's Node");
        self.trace(|| format!("  the Node of ANOTHER node: source {}", source_of(&node)));
        self.handle("NodeSeen", node_event(&node));
    }
}
