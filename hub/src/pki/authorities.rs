//! The authorities of a hub over the years: which one signs, which ones are trusted, and how one replaces
//! another.
//!
//! An authority is made ([`Authorities::make_next`]): clients learn to trust it, and it signs nothing. Then
//! it signs ([`Authorities::sign_with`]), while the former one is still trusted. At last the former one is
//! retired ([`Authorities::retire`]): its key is erased. A certificate by it is then good for one thing
//! alone: to ask for a certificate of the present one.
//!
//! Always holds: there is one authority that signs; at most two are trusted; an authority that is in
//! `authorities.json` is durable. A power cut after any write leaves a state from which the same command
//! continues. A damaged or missing file is an error, as for the first authority: a silent new one would lock
//! out every device. Left to others: the conditions of each step (`ca_command`).
//!
//! On disk, in `pki/`: authority 1 is `ca.pem`, number N is `ca-N.pem`. Each file has the key (none once it
//! is retired) and the certificate. From number 2 on it also has a certificate of the same key that the
//! predecessor signed: by that one, clients that know the predecessor alone accept the authority.
//! `authorities.json` has the number of the one that signs and those of retired ones, and when each of these
//! was retired; without that file number 1 signs. For each that has begun to sign it has the highest issue
//! number of before ([`Authorities::note_start`]), so the number of a certificate tells its authority.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use ring::digest::{SHA256, digest as hash};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::authority::{Authority, certificate_pem, common_name};
use super::error::PkiError;
use super::{exists, load_authority};
use crate::files::{self, Flush};
use crate::own;

/// The file that tells what each authority does, in `pki/`.
const STATE: &str = "authorities.json";
/// The trusted certificates, for anyone.
const PUBLIC: &str = "ca.crt";
/// One authority in ten years is usual; the name of a file is limited by it.
const MAX_NUMBER: u8 = 99;

/// The role of an authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It signs, and is trusted.
    Signing,
    /// It is trusted, and has signed nothing so far.
    Next,
    /// It is trusted, and signs nothing any more.
    Former,
    /// It is not trusted, but for a request for a new certificate.
    Retired,
}

impl Role {
    /// The word that people read.
    pub fn name(self) -> &'static str {
        match self {
            Role::Signing => "signing",
            Role::Next => "next",
            Role::Former => "former",
            Role::Retired => "retired",
        }
    }
}

/// Why a step cannot be made; nothing was changed.
#[derive(Debug)]
pub enum StepError {
    /// The step does not fit the present state.
    Unfit(String),
    /// A file cannot be read or written.
    Pki(PkiError),
}

impl From<PkiError> for StepError {
    fn from(error: PkiError) -> StepError {
        StepError::Pki(error)
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StepError::Unfit(why) => formatter.write_str(why),
            StepError::Pki(error) => error.fmt(formatter),
        }
    }
}

/// One authority as others see it.
#[derive(Debug, Clone)]
pub struct Known {
    /// Its number: 1 for the first one of a hub.
    pub number: u8,
    pub role: Role,
    /// Its common name.
    pub name: String,
    /// SHA-256 of its certificate, hexadecimal.
    pub sha256: String,
    /// When it was retired (Unix time), if that is known.
    pub retired_at: Option<i64>,
    /// The issue numbers of the certificates that it may have signed; `None`: it never signed.
    pub numbers: Option<RangeInclusive<u64>>,
}

/// See the module.
pub(super) struct Authorities {
    directory: PathBuf,
    signing: (u8, Authority),
    /// All others, by number.
    others: BTreeMap<u8, Other>,
    state: State,
}

/// An authority that does not sign.
struct Other {
    certificate: CertificateDer<'static>,
    /// Its key, signed by its predecessor.
    crossed: Option<CertificateDer<'static>>,
}

impl Authorities {
    /// The authorities in `data_dir`, of which number 1 exists.
    pub(super) fn load(data_dir: &Path) -> Result<Authorities, PkiError> {
        let directory = data_dir.join("pki");
        let state = State::load(&directory.join(STATE))?;
        let signing = load_authority(&file(&directory, state.signing))?;
        let mut others = BTreeMap::new();
        for number in numbers(&directory)?.into_iter().filter(|number| *number != state.signing) {
            let path = file(&directory, number);
            let other = match state.retired.contains(&number) {
                true => Other::read(&path)?,
                false => {
                    let whole = load_authority(&path)?;
                    Other { certificate: whole.certificate().clone(), crossed: whole.crossed().cloned() }
                }
            };
            others.insert(number, other);
        }
        if let Some(missing) = state.retired.iter().find(|number| !others.contains_key(number)) {
            let why = format!("missing, but {STATE} names it as retired");
            return Err(PkiError::Authority { path: file(&directory, *missing), why });
        }
        Ok(Authorities { directory, signing: (state.signing, signing), others, state })
    }

    /// The one that signs.
    pub(super) fn signing(&self) -> &Authority {
        &self.signing.1
    }

    /// The certificates of those that are trusted, the signing one first.
    pub(super) fn trusted(&self) -> Vec<CertificateDer<'static>> {
        let others = self.others.iter().filter(|(number, _)| !self.state.retired.contains(number));
        let others = others.map(|(_, other)| other.certificate.clone());
        std::iter::once(self.signing().certificate().clone()).chain(others).collect()
    }

    /// The certificates of those that are retired.
    pub(super) fn retired(&self) -> Vec<CertificateDer<'static>> {
        let retired = self.state.retired.iter().filter_map(|number| self.others.get(number));
        retired.map(|other| other.certificate.clone()).collect()
    }

    /// The trusted certificates in PEM, for anyone.
    pub(super) fn bundle(&self) -> String {
        self.trusted().iter().map(certificate_pem).collect()
    }

    /// The certificates after the hub's own in a handshake: for a client that trusts an earlier authority
    /// alone, one certificate for each later one, the newest first.
    pub(super) fn chain(&self) -> Vec<CertificateDer<'static>> {
        let (number, signing) = &self.signing;
        let earlier = self.others.range(..number).rev();
        let crossed = earlier.map_while(|(_, other)| other.crossed.clone());
        signing.crossed().cloned().into_iter().chain(crossed).collect()
    }

    /// All of them, by number.
    pub(super) fn list(&self) -> Vec<Known> {
        let (signing, authority) = &self.signing;
        let known = |number: u8, certificate: &CertificateDer<'_>| Known {
            number,
            role: self.role(number),
            name: common_name(certificate).unwrap_or_default(),
            sha256: hex(hash(&SHA256, certificate).as_ref()),
            retired_at: self.state.retired_at.get(&number).copied(),
            numbers: self.numbers(number),
        };
        let mut all: Vec<Known> =
            self.others.iter().map(|(number, other)| known(*number, &other.certificate)).collect();
        all.push(known(*signing, authority.certificate()));
        all.sort_by_key(|known| known.number);
        all
    }

    /// The issue numbers of an authority's certificates. Where one signed twice, those of the other one
    /// between are among them.
    fn numbers(&self, number: u8) -> Option<RangeInclusive<u64>> {
        let after = self.state.signs_after.get(&number);
        let first = match (number, after) {
            // certificates of before issue numbers have number 0
            (1, _) => 0,
            (_, Some(after)) => after.saturating_add(1),
            (signing, None) if signing == self.signing.0 => 0,
            (_, None) => return None,
        };
        let last = match number == self.signing.0 {
            true => u64::MAX,
            false => self.state.signs_after.get(&self.signing.0).copied().unwrap_or(u64::MAX),
        };
        Some(first..=last)
    }

    /// Notes the highest issue number of before the signing authority's first certificate. A hub calls it at
    /// its start, because until then it signs with the former one.
    pub(super) fn note_start(&mut self, highest: u64) -> Result<(), PkiError> {
        let is_first = self.others.is_empty() && self.state == State::default();
        if is_first || self.state.signs_after.contains_key(&self.signing.0) {
            return Ok(());
        }
        let mut state = self.state.clone();
        state.signs_after.insert(self.signing.0, highest);
        self.write(&state)?;
        self.state = state;
        Ok(())
    }

    fn role(&self, number: u8) -> Role {
        let signing = self.signing.0;
        match number {
            number if self.state.retired.contains(&number) => Role::Retired,
            number if number == signing => Role::Signing,
            number if number > signing => Role::Next,
            _ => Role::Former,
        }
    }

    fn with(&self, role: Role) -> Option<u8> {
        self.others.keys().copied().find(|number| self.role(*number) == role)
    }

    /// Makes the next authority; returns its number.
    pub(super) fn make_next(&self) -> Result<u8, StepError> {
        for (role, advice) in [
            (Role::Next, "let it sign with `kedge-hub ca switch`"),
            (Role::Former, "retire it with `kedge-hub ca retire` before another one is made"),
        ] {
            if let Some(number) = self.with(role) {
                return Err(StepError::Unfit(format!(
                    "authority {number} is there ({}): {advice}",
                    role.name()
                )));
            }
        }
        let last = self.others.last_key_value().map_or(0, |(number, _)| *number).max(self.signing.0);
        let number = last + 1;
        if number > MAX_NUMBER {
            return Err(StepError::Unfit(format!("a hub has at most {MAX_NUMBER} authorities")));
        }
        self.signing().make_successor()?.save(&file(&self.directory, number))?;
        Ok(number)
    }

    /// Lets the next authority sign, or with `back` the former one again; returns its number.
    pub(super) fn sign_with(&self, back: bool) -> Result<u8, StepError> {
        let (role, missing) = match back {
            false => (Role::Next, "there is no next authority: make one with `kedge-hub ca new`"),
            true => (Role::Former, "there is no former authority to go back to"),
        };
        let number = self.with(role).ok_or_else(|| StepError::Unfit(missing.to_owned()))?;
        let mut state = State { signing: number, ..self.state.clone() };
        // the hub notes it when it begins
        state.signs_after.remove(&number);
        self.write(&state)?;
        Ok(number)
    }

    /// Ends the trust in an authority and erases its key. Goes on with a retirement that a power cut ended.
    pub(super) fn retire(&self, number: u8, now: OffsetDateTime) -> Result<(), StepError> {
        if number == self.signing.0 {
            let text =
                format!("authority {number} signs: let another one sign first, with `kedge-hub ca switch`");
            return Err(StepError::Unfit(text));
        }
        let Some(other) = self.others.get(&number) else {
            return Err(StepError::Unfit(format!(
                "there is no authority {number}: see `kedge-hub ca status`"
            )));
        };
        let mut state = self.state.clone();
        if state.retired.insert(number) {
            state.retired_at.insert(number, now.unix_timestamp());
        }
        self.write(&state)?;
        let crossed = other.crossed.iter().map(certificate_pem);
        let text: String = std::iter::once(certificate_pem(&other.certificate)).chain(crossed).collect();
        let path = file(&self.directory, number);
        files::write(&path, text.as_bytes(), files::SECRET, Flush::Now)
            .map_err(|source| PkiError::Unwritable { path, source })?;
        Ok(())
    }

    /// The retired ones whose key is still on disk, because a power cut ended their retirement.
    pub(super) fn unfinished(&self) -> Vec<u8> {
        let has_key = |number: &&u8| {
            files::read(&file(&self.directory, **number))
                .is_ok_and(|content| content.windows(11).any(|bytes| bytes == b"PRIVATE KEY"))
        };
        self.state.retired.iter().filter(has_key).copied().collect()
    }

    fn write(&self, state: &State) -> Result<(), PkiError> {
        let path = self.directory.join(STATE);
        files::write(&path, state.text().as_bytes(), files::PUBLIC, Flush::Now)
            .map_err(|source| PkiError::Unwritable { path, source })
    }
}

impl Other {
    /// A retired one: there is no key.
    fn read(path: &Path) -> Result<Other, PkiError> {
        let content =
            files::read(path).map_err(|source| PkiError::Unreadable { path: path.to_owned(), source })?;
        Other::read_from(path, &content)
    }

    fn read_from(path: &Path, content: &[u8]) -> Result<Other, PkiError> {
        let corrupt = |why: String| PkiError::Authority { path: path.to_owned(), why };
        let mut all = CertificateDer::pem_slice_iter(content);
        let certificate = all.next().ok_or_else(|| corrupt("expected a PEM certificate".to_owned()))?;
        let certificate =
            certificate.map_err(|error| corrupt(format!("expected a PEM certificate: {error}")))?;
        Ok(Other { certificate, crossed: all.next().and_then(Result::ok) })
    }
}

/// The content of `authorities.json`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct State {
    signing: u8,
    retired: BTreeSet<u8>,
    /// When each was retired (Unix time); an older hub noted none.
    retired_at: BTreeMap<u8, i64>,
    /// The highest issue number of before an authority's first certificate.
    signs_after: BTreeMap<u8, u64>,
}

impl Default for State {
    fn default() -> State {
        State {
            signing: 1,
            retired: BTreeSet::new(),
            retired_at: BTreeMap::new(),
            signs_after: BTreeMap::new(),
        }
    }
}

impl State {
    fn load(path: &Path) -> Result<State, PkiError> {
        if !exists(path)? {
            return Ok(State::default());
        }
        let content =
            files::read(path).map_err(|source| PkiError::Unreadable { path: path.to_owned(), source })?;
        State::read(&content).ok_or_else(|| PkiError::Authority {
            path: path.to_owned(),
            why: "expected {\"signing\": NUMBER, \"retired\": [NUMBER, ...]}".to_owned(),
        })
    }

    fn read(content: &[u8]) -> Option<State> {
        let value: Value = own::read(content).ok()?;
        let number =
            |value: &Value| u8::try_from(value.as_u64()?).ok().filter(|n| (1..=MAX_NUMBER).contains(n));
        let signing = number(&value["signing"])?;
        let retired: BTreeSet<u8> = value["retired"].as_array()?.iter().map(number).collect::<Option<_>>()?;
        // an older hub wrote neither of these, and unreadable ones are unknown
        let retired_at = by_number(&value["retiredAt"], Value::as_i64);
        let signs_after = by_number(&value["signsAfter"], Value::as_u64);
        (!retired.contains(&signing)).then_some(State { signing, retired, retired_at, signs_after })
    }

    fn text(&self) -> String {
        let State { signing, retired, retired_at, signs_after } = self;
        let state = json!({"signing": signing, "retired": retired, "retiredAt": retired_at, "signsAfter": signs_after});
        format!("{state}\n")
    }

    /// The facts of both. A retirement that either of them knows counts. `None`: each authority is retired in
    /// one of them.
    fn united(self, other: State) -> Option<State> {
        let retired: BTreeSet<u8> = self.retired.union(&other.retired).copied().collect();
        let signing = [self.signing.max(other.signing), self.signing, other.signing];
        let signing = signing.into_iter().find(|number| !retired.contains(number))?;
        let mut retired_at = other.retired_at;
        retired_at.extend(self.retired_at);
        let mut signs_after = self.signs_after;
        for (number, after) in other.signs_after {
            let known = signs_after.entry(number).or_insert(after);
            *known = after.max(*known);
        }
        Some(State { signing, retired, retired_at, signs_after })
    }
}

/// The facts about each authority.
fn by_number<T>(map: &Value, fact: impl Fn(&Value) -> Option<T>) -> BTreeMap<u8, T> {
    let entries = map.as_object().into_iter().flatten();
    entries.filter_map(|(number, value)| Some((number.parse().ok()?, fact(value)?))).collect()
}

/// The file of an authority, below `pki/`.
fn file(directory: &Path, number: u8) -> PathBuf {
    match number {
        1 => directory.join("ca.pem"),
        number => directory.join(format!("ca-{number}.pem")),
    }
}

/// Whether a file below the data directory belongs to the authorities, so that a backup has it.
pub(crate) fn is_key_file(name: &str) -> bool {
    name == PUBLIC || name.strip_prefix("pki/").is_some_and(|name| name == STATE || number_of(name).is_some())
}

/// The files of the authorities below a data directory, for a backup.
///
/// # Errors
/// The directory cannot be read.
pub(crate) fn key_files(data_dir: &Path) -> Result<Vec<String>, PkiError> {
    let directory = data_dir.join("pki");
    let numbers = if exists(&directory)? { numbers(&directory)? } else { BTreeSet::new() };
    let own = numbers.into_iter().map(|number| file(Path::new("pki"), number).to_string_lossy().into_owned());
    let others = [format!("pki/{STATE}"), PUBLIC.to_owned()];
    let mut names = own.collect::<Vec<_>>();
    for name in others {
        if exists(&data_dir.join(&name))? {
            names.push(name);
        }
    }
    Ok(names)
}

/// The content that a restore writes over an existing file of the authorities: `None` leaves it as it is. An
/// authority that is retired in the directory or in the backup stays retired.
///
/// # Errors
/// The files are of different authorities.
pub(crate) fn united(name: &str, present: &[u8], backup: &[u8]) -> Result<Option<Vec<u8>>, String> {
    if name == PUBLIC {
        // derived from the others at each start
        return Ok(None);
    }
    if name == format!("pki/{STATE}") {
        let broken = || "it cannot be read".to_owned();
        let own = State::read(present).ok_or_else(broken)?;
        let united = own.clone().united(State::read(backup).ok_or_else(broken)?).ok_or_else(broken)?;
        return Ok((united != own).then(|| united.text().into_bytes()));
    }
    let certificate = |content: &[u8]| CertificateDer::from_pem_slice(content).ok();
    match (certificate(present), certificate(backup)) {
        (Some(present), Some(backup)) if present == backup => Ok(None),
        _ => Err("it is of another certificate authority than the backup; restore into an empty directory"
            .to_owned()),
    }
}

/// Checks that the authorities among the files of a backup can be used.
///
/// # Errors
/// The file and its fault.
pub(crate) fn check(files: &[(String, Vec<u8>)]) -> Result<(), String> {
    let content =
        |name: &str| files.iter().find(|(file, _)| file == name).map(|(_, content)| content.as_slice());
    if content("pki/ca.pem").is_none() {
        return Ok(());
    }
    let state = content(&format!("pki/{STATE}")).map(State::read);
    let state = state.unwrap_or_else(|| Some(State::default()));
    let state = state.ok_or_else(|| format!("pki/{STATE}: it cannot be read"))?;
    let mut certificates = Vec::new();
    for (name, content) in files {
        let Some(number) = name.strip_prefix("pki/").and_then(number_of) else { continue };
        let path = Path::new(name);
        certificates.push(match state.retired.contains(&number) {
            true => Other::read_from(path, content).map_err(|error| error.to_string())?.certificate,
            false => Authority::read(path, content).map_err(|error| error.to_string())?.certificate().clone(),
        });
    }
    let signing = file(Path::new("pki"), state.signing);
    if content(&signing.to_string_lossy()).is_none() {
        return Err(format!("{}: missing, but pki/{STATE} names it", signing.display()));
    }
    let public = content(PUBLIC).unwrap_or_default();
    for public in CertificateDer::pem_slice_iter(public) {
        let public = public.map_err(|error| format!("{PUBLIC}: {error}"))?;
        if !certificates.contains(&public) {
            return Err(format!("{PUBLIC}: it has a certificate of none of the authorities"));
        }
    }
    Ok(())
}

fn number_of(name: &str) -> Option<u8> {
    if name == "ca.pem" {
        return Some(1);
    }
    let digits = name.strip_prefix("ca-")?.strip_suffix(".pem")?;
    let number: u8 = digits.parse().ok()?;
    ((2..=MAX_NUMBER).contains(&number) && number.to_string() == digits).then_some(number)
}

/// The numbers of all authorities, from the names of their files.
fn numbers(directory: &Path) -> Result<BTreeSet<u8>, PkiError> {
    let unreadable = |source| PkiError::Unreadable { path: directory.to_owned(), source };
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(directory).map_err(unreadable)? {
        found.extend(entry.map_err(unreadable)?.file_name().to_str().and_then(number_of));
    }
    Ok(found)
}

/// The short name of a set of certificates: the first eight digits of the SHA-256 over the sorted SHA-256 of
/// each, so that the order does not count.
pub fn digest<'a>(certificates: impl IntoIterator<Item = &'a CertificateDer<'a>>) -> String {
    let mut each: Vec<Vec<u8>> =
        certificates.into_iter().map(|certificate| hash(&SHA256, certificate).as_ref().to_vec()).collect();
    each.sort_unstable();
    hex(&hash(&SHA256, &each.concat()).as_ref()[..4])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const NOW: OffsetDateTime = time::macros::datetime!(2030-01-01 00:00:00 UTC);

    fn hub(name: &str) -> (kedge_rig::Scratch, Authorities) {
        let data = super::super::test_directory(&format!("authorities-{name}"));
        fs::create_dir(data.join("pki")).unwrap();
        Authority::make().unwrap().save(&data.join("pki/ca.pem")).unwrap();
        let authorities = Authorities::load(&data).unwrap();
        (data, authorities)
    }

    fn roles(data: &Path) -> Vec<(u8, Role)> {
        Authorities::load(data).unwrap().list().iter().map(|known| (known.number, known.role)).collect()
    }

    #[test]
    fn authority_is_made_signs_and_retires_its_predecessor() {
        let (data, first) = hub("steps");
        assert_eq!(roles(&data), [(1, Role::Signing)]);
        assert!(first.chain().is_empty());
        assert_eq!(first.make_next().unwrap(), 2);
        assert_eq!(roles(&data), [(1, Role::Signing), (2, Role::Next)]);
        let made = Authorities::load(&data).unwrap();
        assert_eq!(made.signing().certificate(), first.signing().certificate());
        assert!(made.chain().is_empty(), "it signs nothing so far");
        assert_eq!(made.sign_with(false).unwrap(), 2);
        assert_eq!(roles(&data), [(1, Role::Former), (2, Role::Signing)]);
        let switched = Authorities::load(&data).unwrap();
        assert_eq!(switched.chain().len(), 1);
        let digests = [&made, &switched].map(|all| digest(&all.trusted()));
        assert_eq!(digests[0], digests[1], "who trusted both before the switch trusts both after it");
        switched.retire(1, NOW).unwrap();
        assert_eq!(roles(&data), [(1, Role::Retired), (2, Role::Signing)]);
        let retired = Authorities::load(&data).unwrap();
        assert_eq!((retired.trusted().len(), retired.chain().len()), (1, 1));
        assert_ne!(digest(&retired.trusted()), digests[0]);
        assert!(!fs::read_to_string(data.join("pki/ca.pem")).unwrap().contains("KEY"), "its key is erased");
        assert_eq!(retired.make_next().unwrap(), 3);
        Authorities::load(&data).unwrap().sign_with(false).unwrap();
        assert_eq!(Authorities::load(&data).unwrap().chain().len(), 2, "for nodes that know number 1 alone");
    }

    /// Numbers tell certificates apart, also those of a hub that went back once.
    #[test]
    fn numbers_tell_which_authority_signed() {
        let (data, first) = hub("numbers");
        let start = |highest: u64| {
            let mut opened = Authorities::load(&data).unwrap();
            opened.note_start(highest).unwrap();
            opened
        };
        let of = |number: u8| {
            let known = Authorities::load(&data).unwrap().list();
            known.into_iter().find(|known| known.number == number).unwrap().numbers
        };
        start(3);
        assert!(!data.join("pki").join(STATE).exists(), "a hub of one authority writes nothing");
        assert_eq!(of(1), Some(0..=u64::MAX));
        first.make_next().unwrap();
        assert_eq!((of(1), of(2)), (Some(0..=u64::MAX), None), "it signs nothing");
        Authorities::load(&data).unwrap().sign_with(false).unwrap();
        assert_eq!(of(1), Some(0..=u64::MAX), "the hub signs with it until its next start");
        start(7);
        start(9);
        assert_eq!((of(1), of(2)), (Some(0..=7), Some(8..=u64::MAX)));
        Authorities::load(&data).unwrap().sign_with(true).unwrap();
        start(20);
        assert_eq!((of(1), of(2)), (Some(0..=u64::MAX), Some(8..=20)));
        Authorities::load(&data).unwrap().sign_with(false).unwrap();
        start(30).retire(1, NOW).unwrap();
        assert_eq!((of(1), of(2)), (Some(0..=30), Some(31..=u64::MAX)));
        let known = Authorities::load(&data).unwrap().list();
        assert_eq!((known[0].retired_at, known[1].retired_at), (Some(NOW.unix_timestamp()), None));
    }

    #[test]
    fn switch_is_undone() {
        let (data, first) = hub("back");
        first.make_next().unwrap();
        Authorities::load(&data).unwrap().sign_with(false).unwrap();
        assert_eq!(Authorities::load(&data).unwrap().sign_with(true).unwrap(), 1);
        assert_eq!(roles(&data), [(1, Role::Signing), (2, Role::Next)]);
    }

    #[test]
    fn step_out_of_order_changes_nothing() {
        let (data, first) = hub("order");
        let before = |data: &Path| {
            let mut names: Vec<_> =
                fs::read_dir(data.join("pki")).unwrap().map(|e| e.unwrap().path()).collect();
            names.sort();
            names.into_iter().map(|path| (fs::read(&path).unwrap(), path)).collect::<Vec<_>>()
        };
        let refused = |outcome: Result<u8, StepError>, expect: &str| {
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        };
        let files = before(&data);
        refused(first.sign_with(false), "no next authority");
        refused(first.sign_with(true), "no former authority");
        refused(first.retire(1, NOW).map(|()| 1), "authority 1 signs");
        refused(first.retire(7, NOW).map(|()| 7), "no authority 7");
        assert_eq!(before(&data), files);
        first.make_next().unwrap();
        let files = before(&data);
        refused(Authorities::load(&data).unwrap().make_next(), "authority 2 is there (next)");
        assert_eq!(before(&data), files);
    }

    #[test]
    fn power_cut_in_a_retirement_is_made_good() {
        let (data, first) = hub("cut");
        first.make_next().unwrap();
        Authorities::load(&data).unwrap().sign_with(false).unwrap();
        let switched = Authorities::load(&data).unwrap();
        // the first of its two writes
        switched.write(&State { retired: BTreeSet::from([1]), ..switched.state.clone() }).unwrap();
        let cut = Authorities::load(&data).unwrap();
        assert_eq!((cut.unfinished(), cut.trusted().len()), (vec![1], 1));
        cut.retire(1, NOW).unwrap();
        assert!(Authorities::load(&data).unwrap().unfinished().is_empty());
    }

    #[test]
    fn damage_is_an_error_never_a_new_authority() {
        let check = |name: &str, file: &str, content: Option<&str>| {
            let (data, first) = hub(name);
            first.make_next().unwrap();
            Authorities::load(&data).unwrap().sign_with(false).unwrap();
            let path = data.join("pki").join(file);
            match content {
                None => fs::remove_file(&path).unwrap(),
                Some(text) => fs::write(&path, text).unwrap(),
            }
            let error = Authorities::load(&data).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(file), "{name}: {error:?}");
        };
        check("no-signing", "ca-2.pem", None);
        check("empty-signing", "ca-2.pem", Some(""));
        check("empty-former", "ca.pem", Some(""));
        check("empty-state", STATE, Some(""));
        check("odd-state", STATE, Some(r#"{"signing": 2, "retired": [2]}"#));
        check("far-state", STATE, Some(r#"{"signing": 300, "retired": []}"#));
    }

    #[test]
    fn only_names_of_authorities_are_key_files() {
        let check = |name: &str, expect: bool| assert_eq!(is_key_file(name), expect, "{name}");
        check("pki/ca.pem", true);
        check("pki/ca-2.pem", true);
        check("pki/ca-99.pem", true);
        check("pki/authorities.json", true);
        check("ca.crt", true);
        for name in [
            "pki/ca-1.pem",
            "pki/ca-02.pem",
            "pki/ca-100.pem",
            "pki/ca-+2.pem",
            "pki/../ca.pem",
            "ca.pem",
            "pki/admin.pem",
        ] {
            check(name, false);
        }
    }

    #[test]
    fn restore_unites_what_was_retired() {
        let state = |signing: u8, retired: &[u8]| json!({"signing": signing, "retired": retired}).to_string();
        let check = |present: &str, backup: &str, expect: Option<&str>| {
            let united = united("pki/authorities.json", present.as_bytes(), backup.as_bytes()).unwrap();
            let found = united.map(|text| String::from_utf8(text).unwrap());
            let read = |text: &str| State::read(text.as_bytes()).map(|state| (state.signing, state.retired));
            assert_eq!(found.as_deref().and_then(read), expect.and_then(read), "{present} with {backup}");
        };
        check(&state(2, &[]), &state(2, &[1]), Some(&state(2, &[1])));
        check(&format!("{}\n", state(2, &[1])), &state(2, &[]), None);
        check(&state(1, &[2]), &state(3, &[]), Some(&state(3, &[2])));
        check(&state(1, &[]), &state(2, &[]), Some(&state(2, &[])));
        let state = |text: &str| State::read(text.as_bytes()).unwrap();
        let own = state(r#"{"signing": 2, "retired": [1], "retiredAt": {"1": 10}, "signsAfter": {"2": 5}}"#);
        let other = state(
            r#"{"signing": 3, "retired": [1], "retiredAt": {"1": 99}, "signsAfter": {"2": 7, "3": 9}}"#,
        );
        let both = own.united(other).unwrap();
        assert_eq!(State::read(both.text().as_bytes()).as_ref(), Some(&both));
        assert_eq!(both.retired_at, BTreeMap::from([(1, 10)]));
        assert_eq!(both.signs_after, BTreeMap::from([(2, 7), (3, 9)]));
        let (ours, theirs) = (Authority::make().unwrap(), Authority::make().unwrap());
        let pem = |authority: &Authority| authority.certificate_pem().into_bytes();
        assert_eq!(united("pki/ca.pem", &pem(&ours), &pem(&ours)), Ok(None));
        assert!(
            united("pki/ca.pem", &pem(&ours), &pem(&theirs))
                .unwrap_err()
                .contains("another certificate authority")
        );
    }
}
