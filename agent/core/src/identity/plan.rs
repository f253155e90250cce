//! The next step for a state of the disk: a table, read from its top.
//!
//! Always holds: it is a pure function; performing its steps one after the other, looking again after each,
//! ends at rest.

use super::{By, Certificate, Found, Given, Key, Step};

/// Certificates that are kept: the current one, and the one before it.
const KEPT: usize = 2;

/// Facts besides the disk.
#[derive(Debug, Clone, Default)]
pub struct Situation {
    /// Wall time in seconds since 1970, by this node's clock.
    pub wall: u64,
    /// How many seconds this node has run, as far as is known, since the certificate in use was issued.
    pub ran: u64,
    /// The server accepts the credential in use.
    pub is_accepted: bool,
    /// The server has refused the credential for a while (401).
    pub is_refused: bool,
    /// `rotateCertificates`.
    pub rotates: bool,
    /// The server issues numbered certificates.
    pub gives_numbers: bool,
    /// An administrator wants certificates up to this number exchanged.
    pub rotate: Option<u64>,
    /// The server lets a request for `next.key` wait, though it refuses everything else: that key is not the
    /// newest that it knows.
    pub is_next_unknown: bool,
    /// The last request showed the node's own credential, which was refused.
    pub own_was_refused: bool,
    /// A certificate that was issued but is not on the disk so far, and its key.
    pub issued: Option<(Key, Certificate, Vec<u8>)>,
}

/// A decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    Step(Step),
    /// Ask for a certificate.
    Ask(Key, By),
    /// Nothing, for now.
    Rest,
    /// Nothing, because there is no credential: neither a certificate nor a token to join with.
    Without,
    /// Nothing, because the credential is not one that this node could renew.
    NotOurs,
}

/// The source of the credential in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Kubeconfig,
    Own,
}

/// The source of the credential in use: the kubeconfig's certificate, if there is one, or the node's own. The
/// own one is newer if it took the place of the present kubeconfig's, or if the same issuer has given it a
/// greater number. A kubeconfig that came later has another certificate.
pub fn source(given: Option<&Certificate>, own: &Certificate) -> Source {
    let is_newer = given.is_none_or(|given| {
        let is_counted_later = given.issuer == own.issuer && given.number < own.number;
        own.replaces.as_ref() == Some(&given.id) || own.id == given.id || is_counted_later
    });
    if is_newer { Source::Own } else { Source::Kubeconfig }
}

impl Found {
    /// The certificate in use, and where it is.
    pub fn in_use(&self) -> Option<(&Certificate, Source)> {
        let given = match &self.given {
            Given::Certificate(given) => Some(given),
            Given::Other => return None,
            Given::Nothing | Given::Unusable(_) => None,
        };
        match &self.current {
            Some(own) if source(given, own) == Source::Own => Some((own, Source::Own)),
            _ => given.map(|given| (given, Source::Kubeconfig)),
        }
    }
}

impl Certificate {
    /// When to renew: after 70 to 90 % of its life, which differs from key to key.
    pub fn due(&self) -> u64 {
        let life = self.not_after.saturating_sub(self.issued);
        let first_byte = self.key.get(..2).and_then(|hex| u64::from_str_radix(hex, 16).ok());
        let spread = first_byte.unwrap_or_default();
        let part = 7_u64.saturating_mul(255).saturating_add(spread.saturating_mul(2));
        // in this order: a life of centuries would overflow
        self.issued
            .saturating_add((life / 2550).saturating_mul(part))
            .saturating_add((life % 2550).saturating_mul(part) / 2550)
    }

    /// Whether this node's clock can be right: a server that accepts the certificate says that it has not
    /// ended.
    pub fn fits(&self, wall: u64, is_accepted: bool) -> bool {
        self.issued <= wall && !(is_accepted && self.not_after <= wall)
    }

    fn is_due(&self, now: &Situation) -> bool {
        match self.fits(now.wall, now.is_accepted) {
            true => self.due() <= now.wall,
            false => self.due().saturating_sub(self.issued) <= now.ran,
        }
    }
}

/// The next act.
pub fn plan(found: &Found, now: &Situation) -> Plan {
    if let Some((file, why)) = found.damaged.first() {
        return Plan::Step(Step::SetAside(file.clone(), why.clone()));
    }
    if matches!(found.given, Given::Other) {
        return Plan::NotOurs;
    }
    let current = found.current.as_ref();
    if let Some((key, issued, pem)) = &now.issued
        && current.is_none_or(|current| current.id != issued.id)
    {
        return Plan::Step(install(found, *key, issued, pem));
    }
    // the power was cut after the key's certificate was written
    if let Some(kept) = found.kept.iter().find(|kept| is_next(kept, found)) {
        return Plan::Step(Step::Point(kept.serial.clone()));
    }
    // the current one was damaged, and another is left
    if let (None, Some(kept)) = (current, found.kept.iter().max_by_key(|kept| (kept.number, kept.issued))) {
        return Plan::Step(Step::Point(kept.serial.clone()));
    }
    if current.is_some_and(|current| found.next.as_ref() == Some(&current.key)) {
        return Plan::Step(Step::RemoveKey);
    }
    if let Some(step) = prune(found) {
        return Plan::Step(step);
    }
    let lacks_kubeconfig = matches!(found.given, Given::Nothing | Given::Unusable(_)) && !found.has_generated;
    match found.in_use() {
        None if found.can_join => join(found),
        None => Plan::Without,
        Some(_) if lacks_kubeconfig && found.can_join => Plan::Step(Step::WriteKubeconfig),
        Some(_) if lacks_kubeconfig => Plan::Without,
        Some((certificate, source)) => renew(found, now, certificate, source),
    }
}

/// A certificate that was just issued becomes durable.
fn install(found: &Found, key: Key, issued: &Certificate, pem: &[u8]) -> Step {
    let is_kept = found.kept.iter().any(|kept| kept.id == issued.id);
    match (&found.given, key) {
        (Given::Nothing | Given::Unusable(_), _) if !found.has_generated && found.can_join => {
            Step::WriteKubeconfig
        }
        // the certificate is for the current key, so the next key is not needed
        (_, Key::Current) if found.next.is_some() => Step::RemoveKey,
        _ if is_kept => Step::Point(issued.serial.clone()),
        _ => Step::Keep { key, serial: issued.serial.clone(), pem: pem.to_vec() },
    }
}

fn is_next(kept: &Certificate, found: &Found) -> bool {
    let is_current = found.current.as_ref().is_some_and(|current| current.id == kept.id);
    found.next.as_ref() == Some(&kept.key) && !is_current
}

/// The oldest certificate that is kept too long.
fn prune(found: &Found) -> Option<Step> {
    let current = found.current.as_ref()?;
    let others = found.kept.iter().filter(|kept| kept.id != current.id);
    let is_more = others.clone().count() >= KEPT;
    let oldest = others.min_by_key(|kept| (kept.number, kept.issued)).filter(|_| is_more)?;
    Some(Step::Remove(oldest.serial.clone()))
}

fn join(found: &Found) -> Plan {
    match &found.next {
        Some(_) => Plan::Ask(Key::Next, By::Bootstrap),
        None => Plan::Step(Step::MakeKey),
    }
}

fn renew(found: &Found, now: &Situation, certificate: &Certificate, source: Source) -> Plan {
    if now.is_refused && (now.rotates || found.can_join) {
        let is_own_used_up = now.own_was_refused || !now.rotates;
        let by = if is_own_used_up && found.can_join { By::Bootstrap } else { By::Own };
        // a server that takes an expired credential takes it for the key that it knows: the next one, if the
        // answer to its request was lost
        let is_next = found.next.is_some() && !now.is_next_unknown;
        return Plan::Ask(if is_next { Key::Next } else { Key::Current }, by);
    }
    if !now.is_accepted {
        return Plan::Rest;
    }
    if found.has_leftover_token && found.current.is_some() {
        return Plan::Step(Step::RemoveToken);
    }
    // a hub's numbers begin with its upgrade: a kubeconfig's certificate without one is exchanged at once,
    // and only once
    let is_exchanged = now.gives_numbers && certificate.number == 0 && source == Source::Kubeconfig;
    let is_wanted = now.rotate.is_some_and(|number| certificate.number <= number);
    let is_due = is_exchanged || certificate.is_due(now);
    if is_wanted || now.rotates && (found.next.is_some() || is_due) {
        return match &found.next {
            Some(_) => Plan::Ask(Key::Next, By::Own),
            None => Plan::Step(Step::MakeKey),
        };
    }
    Plan::Rest
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;
    const YEAR: u64 = 365 * DAY;
    const ISSUED: u64 = 1_800_000_000;

    fn certificate(number: u64, key: &str) -> Certificate {
        Certificate {
            serial: format!("0{number}"),
            number,
            issued: ISSUED,
            not_after: ISSUED + YEAR,
            key: key.into(),
            id: format!("id-{number}"),
            issuer: "hub".into(),
            replaces: None,
        }
    }

    /// A node that was joined by a token and is at rest.
    fn joined() -> Found {
        let current = certificate(7, "80");
        Found { kept: vec![current.clone()], current: Some(current), has_generated: true, ..Found::default() }
    }

    fn at(wall: u64) -> Situation {
        Situation { wall, is_accepted: true, rotates: true, ..Situation::default() }
    }

    #[track_caller]
    fn check(found: &Found, now: &Situation, expect: Plan) {
        assert_eq!(plan(found, now), expect);
    }

    #[test]
    fn node_without_a_credential_joins_by_its_token() {
        let mut found = Found::default();
        check(&found, &at(0), Plan::Without);
        found.can_join = true;
        check(&found, &at(0), Plan::Step(Step::MakeKey));
        found.next = Some("80".into());
        check(&found, &at(0), Plan::Ask(Key::Next, By::Bootstrap));
        let mut now = at(0);
        now.issued = Some((Key::Next, certificate(7, "80"), b"pem".to_vec()));
        check(&found, &now, Plan::Step(Step::WriteKubeconfig));
        found.has_generated = true;
        let keep = Step::Keep { key: Key::Next, serial: "07".into(), pem: b"pem".to_vec() };
        check(&found, &now, Plan::Step(keep));
        found.kept.push(certificate(7, "80"));
        // from here on with nothing but the disk
        check(&found, &at(0), Plan::Step(Step::Point("07".into())));
        found.current = Some(certificate(7, "80"));
        found.has_leftover_token = true;
        check(&found, &at(0), Plan::Step(Step::RemoveKey));
        found.next = None;
        let silent = Situation { is_accepted: false, ..at(ISSUED) };
        check(&found, &silent, Plan::Rest);
        check(&found, &at(ISSUED), Plan::Step(Step::RemoveToken));
        found.has_leftover_token = false;
        check(&found, &at(ISSUED), Plan::Rest);
    }

    #[test]
    fn certificate_is_renewed_within_its_life() {
        for (key, percent) in [("00", 70), ("ff", 90)] {
            let due = certificate(7, key).due();
            assert_eq!((due - ISSUED) * 100 / YEAR, percent, "{key}");
        }
        let due = certificate(7, "80").due();
        let mut found = joined();
        check(&found, &at(due - 1), Plan::Rest);
        check(&found, &at(due), Plan::Step(Step::MakeKey));
        check(&found, &Situation { rotates: false, ..at(due) }, Plan::Rest);
        check(&found, &Situation { is_accepted: false, ..at(due) }, Plan::Rest);
        found.next = Some("81".into());
        check(&found, &at(due), Plan::Ask(Key::Next, By::Own));
        // a renewal that was cut continues, also under a clock that fell back
        check(&found, &at(ISSUED), Plan::Ask(Key::Next, By::Own));
        let endless = Certificate { not_after: u64::MAX, issued: 0, ..Certificate::default() };
        assert!(endless.due() > u64::MAX / 2);
    }

    #[test]
    fn clock_that_cannot_be_right_leaves_running_time() {
        let due = certificate(7, "80").due() - ISSUED;
        for wall in [0, ISSUED - 1, ISSUED + YEAR, u64::MAX] {
            let ran = |ran| Situation { ran, ..at(wall) };
            check(&joined(), &ran(due - 1), Plan::Rest);
            check(&joined(), &ran(due), Plan::Step(Step::MakeKey));
        }
    }

    #[test]
    fn refused_credential_asks_for_the_same_key() {
        let refused = Situation { is_refused: true, is_accepted: false, ..at(ISSUED + YEAR + 1) };
        let mut found = joined();
        check(&found, &refused, Plan::Ask(Key::Current, By::Own));
        let own_was_refused = Situation { own_was_refused: true, ..refused.clone() };
        check(&found, &own_was_refused, Plan::Ask(Key::Current, By::Own));
        found.can_join = true;
        check(&found, &own_was_refused, Plan::Ask(Key::Current, By::Bootstrap));
        // the answer to a request for the next key was lost
        found.next = Some("81".into());
        check(&found, &refused, Plan::Ask(Key::Next, By::Own));
        let unknown = Situation { is_next_unknown: true, ..refused };
        check(&found, &unknown, Plan::Ask(Key::Current, By::Own));
        let new = Certificate { key: "80".into(), ..certificate(9, "80") };
        let issued = Situation { issued: Some((Key::Current, new.clone(), b"pem".to_vec())), ..unknown };
        check(&found, &issued, Plan::Step(Step::RemoveKey));
        found.next = None;
        let keep = Step::Keep { key: Key::Current, serial: "09".into(), pem: b"pem".to_vec() };
        check(&found, &issued, Plan::Step(keep));
        found.kept.push(new);
        check(&found, &issued, Plan::Step(Step::Point("09".into())));
    }

    #[test]
    fn two_certificates_are_kept() {
        let mut found = joined();
        found.kept = (5..=7).map(|number| certificate(number, &format!("{number}0"))).collect();
        found.current = Some(found.kept[2].clone());
        check(&found, &at(ISSUED), Plan::Step(Step::Remove("05".into())));
        found.kept.remove(0);
        check(&found, &at(ISSUED), Plan::Rest);
        // the current one is damaged
        found.current = None;
        found.damaged = vec![("current".into(), "no PEM".into())];
        check(&found, &at(ISSUED), Plan::Step(Step::SetAside("current".into(), "no PEM".into())));
        found.damaged.clear();
        check(&found, &at(ISSUED), Plan::Step(Step::Point("07".into())));
    }

    #[test]
    fn certificate_without_a_number_is_exchanged_once() {
        let given = Certificate { not_after: ISSUED + 25 * YEAR, ..certificate(0, "80") };
        let mut found = Found { given: Given::Certificate(given.clone()), ..Found::default() };
        check(&found, &at(ISSUED), Plan::Rest);
        let numbers = Situation { gives_numbers: true, ..at(ISSUED) };
        check(&found, &numbers, Plan::Step(Step::MakeKey));
        // a server that accepted the certificate and then refuses it is not asked again and again
        found.current =
            Some(Certificate { id: "new".into(), replaces: Some(given.id), ..certificate(0, "81") });
        check(&found, &numbers, Plan::Rest);
    }

    #[test]
    fn administrator_can_have_a_certificate_exchanged() {
        let rotate = |number| Situation { rotate: Some(number), rotates: false, ..at(ISSUED) };
        check(&joined(), &rotate(6), Plan::Rest);
        check(&joined(), &rotate(7), Plan::Step(Step::MakeKey));
        let found = Found { next: Some("81".into()), ..joined() };
        check(&found, &rotate(7), Plan::Ask(Key::Next, By::Own));
    }

    #[test]
    fn newer_of_kubeconfig_and_own_certificate_is_used() {
        let own = Certificate { replaces: Some("id-3".into()), ..certificate(7, "80") };
        let of = |number| source(Some(&certificate(number, "90")), &own);
        assert_eq!([of(3), of(6), of(8), of(0)], [Source::Own, Source::Own, Source::Kubeconfig, Source::Own]);
        let of_another_hub = Certificate { issuer: "other".into(), ..certificate(1, "90") };
        assert_eq!(source(Some(&of_another_hub), &own), Source::Kubeconfig);
        assert_eq!(source(None, &own), Source::Own);
        // no counting issuer: whatever is not the certificate that was replaced came later
        let own = Certificate { number: 0, ..own };
        let given = |id: &str| Certificate { id: id.into(), ..certificate(0, "90") };
        assert_eq!(source(Some(&given("id-3")), &own), Source::Own);
        assert_eq!(source(Some(&given("id-4")), &own), Source::Kubeconfig);
    }

    #[test]
    fn credential_of_somebody_else_is_left_alone() {
        let found = Found { given: Given::Other, can_join: true, ..joined() };
        check(&found, &at(ISSUED + YEAR), Plan::NotOurs);
    }
}
