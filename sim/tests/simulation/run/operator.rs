//! The acts of people in a run: an operator pushes and assigns, somebody edits files on the board; and disks
//! that fill up.

use super::*;
use crate::configs::WITHOUT_WATCHES;

impl Simulation {
    pub(super) fn act_as_operator(&mut self) {
        let wild = self.mode == Mode::All;
        self.model.forget_crashes();
        // this mutant shows only when something is forgiven while the agent runs
        let forgives = if self.mutant == Some(Mutant::NeverForgiven) { 90 } else { 25 };
        if wild && self.random.percent(forgives) && self.forgive() {
            return;
        }
        let (name, design) = (*self.random.pick(&MAPS), self.random.pick(&self.designs).clone());
        let done = match self.random.below(if wild { 30 } else { 12 }) {
            act @ 0..=11 => self.assign(act, name, &design),
            act @ 12..=18 => Some(self.break_objects(act, name, &design)),
            act @ 19..=23 => self.change_node_or_hub(act),
            act => self.change_clock_or_hub(act),
        };
        if let Some(done) = done {
            self.trace(|| format!("OPERATOR {done}"));
        }
    }

    fn assign(&mut self, act: u64, name: &str, design: &Design) -> Option<String> {
        let is_wild = self.mode == Mode::All;
        if act == 9 && is_wild {
            self.hit("fault", "several keys with payloads");
        }
        if act <= 7 && [design.nature(0), design.nature(1)] == [Nature::Invalid; 2] {
            self.hit("fault", "harmful values pushed");
        }
        if act <= 7 && design.payload.contains(WITHOUT_WATCHES) {
            self.hit("fault", "pushed without watches");
        }
        let other = self.random.pick(&self.designs).clone();
        let key = *self.random.pick(&["kubelet", OTHER_KEY]);
        let (pods, hub) = (design.max_pods, &mut self.world.hub);
        Some(match act {
            0..=3 => {
                hub.push(name, &design.payload);
                hub.assign(hub.pinned(name));
                format!("pushes {pods} as {name} and assigns it by UID")
            }
            4..=7 => {
                hub.push(name, &design.payload);
                hub.assign(Hub::following(name));
                format!("pushes {pods} as {name} and assigns it by name")
            }
            9 if is_wild => {
                // one object with two configs; the Node refers to one of them
                hub.push_data(name, json!({"kubelet": design.payload, OTHER_KEY: other.payload}));
                let mut source = Hub::following(name);
                source["configMap"]["kubeletConfigKey"] = json!(key);
                hub.assign(source);
                format!("pushes {pods} and {} as {name} and assigns {key}", other.max_pods)
            }
            8..=9 => {
                hub.push(name, &design.payload);
                format!("pushes {pods} as {name}")
            }
            10 => {
                hub.assign(Value::Null);
                "assigns nothing".into()
            }
            11 if hub.config_map(name).is_some() => {
                hub.assign(hub.pinned(name));
                format!("assigns {name} as it is")
            }
            _ => return None,
        })
    }

    fn break_objects(&mut self, act: u64, name: &str, design: &Design) -> String {
        let (pods, hub) = (design.max_pods, &mut self.world.hub);
        match act {
            12 | 13 => {
                hub.delete_config_map(name);
                format!("deletes {name}")
            }
            14 | 15 => {
                hub.delete_config_map(name);
                hub.push(name, &design.payload);
                format!("re-creates {name} as {pods}")
            }
            16 => {
                hub.assign(json!({}));
                "assigns {}".into()
            }
            17 => {
                let both = json!({
                    "configMapRef": hub.pinned(name)["configMapRef"], "configMap": Hub::following(name)["configMap"],
                });
                hub.assign(both);
                "assigns both forms at once".into()
            }
            _ => {
                hub.push_data(name, json!({"other": "text"}));
                format!("takes the payload out of {name}")
            }
        }
    }

    fn change_node_or_hub(&mut self, act: u64) -> Option<String> {
        let is_running = self.world.process.is_some();
        Some(match act {
            19 => {
                self.world.hub.delete_node();
                if self.random.percent(50) {
                    self.world.hub.create_node(NODE);
                }
                "re-creates or deletes the Node".into()
            }
            20 => {
                let flavour = self.world.hub.flavour;
                let counter = self.random.below(1 << 40);
                self.world.hub = Hub::new(flavour);
                self.world.hub.wiped(counter);
                self.hit("fault", "hub wiped");
                "WIPES THE HUB".into()
            }
            21 => {
                self.world.hub.mark_unknown();
                "hears nothing and marks the Node Unknown".into()
            }
            23 if is_running => {
                self.model.forget_all();
                self.handle("Reset", Event::Reset);
                "resets on the node".into()
            }
            _ => return None,
        })
    }

    fn change_clock_or_hub(&mut self, act: u64) -> Option<String> {
        Some(match act {
            24 => {
                let years = if self.random.percent(50) { 1 } else { -1 };
                self.world
                    .board
                    .set_wall((self.world.board.wall_micros() + years * TWENTY_YEARS_MICROS).max(0));
                self.hit("fault", "clock step");
                "the clock on the wall jumps by 20 years".into()
            }
            25 => {
                self.world
                    .board
                    .set_wall(WALL_MICROS + i64::try_from(self.world.time.as_micros()).expect("a run"));
                self.hit("fault", "clock set right");
                "the clock on the wall is set right".into()
            }
            26 => {
                self.backup = Some(self.world.hub.clone());
                "saves the hub".into()
            }
            28 if self.world.process.is_some() => {
                self.edit_metadata();
                "edits the ConfigMaps' metadata each minute".into()
            }
            27 if self.backup.is_some() => {
                let newest = self.world.hub.counter();
                self.world.hub = self.backup.clone().expect("there is one");
                self.world.hub.wiped(newest);
                self.hit("fault", "hub restored");
                "RESTORES THE HUB as it was saved".into()
            }
            _ => return None,
        })
    }

    /// Every object gets a new version with the same payloads.
    fn edit_metadata(&mut self) {
        self.hit("event", "metadata edited");
        for _ in 0..EDITS {
            for name in MAPS {
                let Some(map) = self.world.hub.config_map(name) else { continue };
                self.world.hub.push_data(name, map["data"].clone());
            }
            self.pass_time(Duration::from_secs(60));
        }
    }

    /// Returns whether there was anything to forgive.
    pub(super) fn forgive(&mut self) -> bool {
        let bad = self.world.bad_configs();
        let is_verdict = |uid: &&String| !["unknown", "forgiven"].contains(&uid.as_str());
        let uid = bad.as_object().and_then(|bad| bad.keys().find(is_verdict).or(bad.keys().next()).cloned());
        let Some(uid) = uid else { return false };
        let otherwise = if self.mutant == Some(Mutant::NeverForgiven) { 0 } else { 30 };
        let by_hand = self.world.process.is_none() || self.random.percent(otherwise);
        self.trace(|| format!("OPERATOR forgives {uid}{}", if by_hand { " by hand" } else { "" }));
        self.model.forget_all();
        if by_hand {
            let mut bad = bad;
            if let Some(bad) = bad.as_object_mut() {
                bad.remove(&uid);
            }
            let path = StateFile::BadConfigs.path(&self.world.version);
            self.world.disk.put(&path, bad.to_string().as_bytes());
            self.model.tampered = true;
            if self.random.percent(70) {
                let read = self.world.read_bad_configs();
                self.handle("BadConfigsRead", Event::BadConfigsRead(read));
            }
        } else if self.random.percent(otherwise) {
            // obeyed once, when it is read; the annotation stays
            let asked = format!("{uid} {}", self.random.below(1 << 20));
            self.world
                .hub
                .edit_node(|node| node["metadata"]["annotations"]["kedge.dev/forgive"] = json!(asked));
        } else {
            self.forgiven_ids(&bad, &uid);
            self.handle("Forgive", Event::Forgive(uid));
        }
        true
    }

    pub(super) fn change_while_stopped(&mut self) {
        if self.mode != Mode::All {
            return;
        }
        match self.random.below(5) {
            0 | 1 => self.edit_drop_in(),
            2 => {
                let version = *self.random.pick(&VERSIONS);
                match version.cmp(&self.world.version) {
                    Ordering::Greater => self.hit("fault", "agent upgraded"),
                    Ordering::Less => self.hit("fault", "agent downgraded"),
                    Ordering::Equal => {}
                }
                self.model.upgraded(&self.world.version, version);
                self.world.version = version.into();
                self.model.forget_crashes();
                self.trace(|| format!("THE AGENT IS NOW {version}"));
            }
            3 => {
                self.local_invalid = true;
                self.world.drop_in("maxPods: lots\n");
                self.trace(|| "a drop-in is BROKEN".into());
            }
            _ => {
                self.world.dynamic = !self.world.dynamic;
                self.model.doubt_last_crash();
                let dynamic = self.world.dynamic;
                self.model.forget_crashes();
                self.trace(|| format!("--dynamic-config={dynamic}"));
            }
        }
    }

    pub(super) fn edit_drop_in(&mut self) {
        self.drop_in = usize::from(self.mode == Mode::All && self.random.percent(50));
        // its counts continue: a file that is rewritten at each boot must not switch the protection off
        self.mend_local();
        let drop_in = self.drop_in;
        self.trace(|| format!("{} drop-in", if drop_in == 1 { "with the" } else { "no" }));
    }

    pub(super) fn mend_local(&mut self) {
        self.local_invalid = false;
        self.world.local.drop_ins.clear();
        let rewritten = if self.rewrites_drop_in {
            format!("eventRecordQPS: {}\n", self.world.starts)
        } else {
            String::new()
        };
        let mends = if self.drop_in == 1 { DROP_IN } else { "" };
        if !rewritten.is_empty() || !mends.is_empty() {
            self.world.drop_in(&format!("{mends}{rewritten}"));
        }
        self.overrides = canonical_overrides(&self.world.local).expect("the local config is valid");
    }

    /// Files are damaged, lost or made unreadable, or the disk fills up or is freed.
    pub(super) fn touch_files(&mut self) {
        if self.random.percent(50) {
            let works = self.world.disk.fault == WriteFault::None;
            let (fault, name) = match self.random.below(4) {
                0 | 1 if works => (WriteFault::All, "disk full"),
                2 if works => (WriteFault::Checkpoints, "disk full but for the reserve"),
                3 if works => (WriteFault::ReadOnly, "disk read-only"),
                _ => (WriteFault::None, "disk mended"),
            };
            self.world.disk.fault = fault;
            self.hit("fault", name);
            self.trace(|| format!("THE DISK: {name}"));
            return;
        }
        let paths: Vec<String> =
            self.world.disk.paths().into_iter().filter(|path| !path.contains(".corrupt-")).collect();
        if paths.is_empty() || self.random.percent(50) {
            return;
        }
        let path = self.random.pick(&paths).clone();
        let kind = match self.random.below(3) {
            0 => {
                let length = self.random.below(40);
                let bytes = vec![0; usize::try_from(length).expect("small")];
                // an empty record means local: only a person writes that, not chance
                self.world.disk.put(&path, if bytes.is_empty() { b"x" } else { &bytes });
                "damaged record"
            }
            1 => {
                self.world.disk.remove(&path);
                "removed record"
            }
            _ => {
                self.world.disk.make_unreadable(&path);
                "unreadable record"
            }
        };
        self.hit("fault", kind);
        self.damaged.insert(path.clone());
        self.trace(|| format!("FILE {path}: {kind}"));
        self.model.forget_all();
        self.model.tampered = true;
    }
}
