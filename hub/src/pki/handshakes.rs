//! Tests of the hub's TLS: real handshakes in memory, with clients whose clocks are off.
//!
//! Holds for every test: client and server are rustls as the agent and the hub use it; only the client's
//! clock is simulated.

use std::sync::Arc;
use std::time::Duration as StdDuration;

use rustls::client::{Resumption, Tls12Resumption};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, RootCertStore, ServerConfig, ServerConnection,
    SupportedProtocolVersion,
};
use time::macros::datetime;
use time::{Duration, OffsetDateTime};

use super::*;
use kedge_hub_core::identity::Identity;

const TLS12: &[&SupportedProtocolVersion] = &[&rustls::version::TLS12];
const TLS13: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

#[derive(Debug)]
struct Clock(OffsetDateTime);

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(StdDuration::from_secs(u64::try_from(self.0.unix_timestamp()).ok()?)))
    }
}

struct Client {
    now: OffsetDateTime,
    kubeconfig: Option<String>,
    /// The PEM of the authority that the client trusts.
    trusts: Vec<u8>,
    /// Kept until the test is over.
    _data: kedge_rig::Scratch,
    versions: &'static [&'static SupportedProtocolVersion],
}

/// The hub under test, its directory, and a valid client.
fn hub(name: &str) -> (Pki, Arc<ServerConfig>, Client) {
    let data = test_directory(&format!("tls-{name}"));
    let now = OffsetDateTime::now_utc();
    let pki = Pki::open(&data, &["localhost".to_owned(), "127.0.0.1".to_owned()], now).unwrap();
    let config = pki.server_config().unwrap();
    let kubeconfig =
        node_kubeconfig(&data, "edge-1", Some("https://localhost:1".to_owned()), None, now).unwrap();
    let trusts = std::fs::read(pki.ca_path()).unwrap();
    let client =
        Client { now, kubeconfig: Some(kubeconfig), trusts, versions: rustls::ALL_VERSIONS, _data: data };
    (pki, config, client)
}

fn embedded(kubeconfig: &str, field: &str) -> Vec<u8> {
    use base64::Engine as _;
    let line = kubeconfig.lines().find_map(|line| line.trim().strip_prefix(&format!("{field}: "))).unwrap();
    base64::engine::general_purpose::STANDARD.decode(line).unwrap()
}

impl Client {
    fn config(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&self.trusts).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_details(provider, Arc::new(Clock(self.now)))
            .with_protocol_versions(self.versions)
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match &self.kubeconfig {
            None => builder.with_no_client_auth(),
            Some(text) => {
                let chain = embedded(text, "client-certificate-data");
                let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&chain).collect();
                let key = PrivateKeyDer::from_pem_slice(&embedded(text, "client-key-data")).unwrap();
                builder.with_client_auth_cert(chain.unwrap(), key).unwrap()
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config.resumption = Resumption::in_memory_sessions(8);
        Arc::new(config)
    }
}

/// The server's view of a connected client.
#[derive(Debug, PartialEq)]
struct Connected {
    user: Option<String>,
    resumed: bool,
    protocol: Option<Vec<u8>>,
}

fn connect(server: &Arc<ServerConfig>, client: &Arc<ClientConfig>, host: &str) -> Result<Connected, String> {
    let host = ServerName::try_from(host.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::clone(client), host).map_err(|error| error.to_string())?;
    let mut server = ServerConnection::new(Arc::clone(server)).map_err(|error| error.to_string())?;
    // each turn carries one flight each way; no handshake with tickets takes more than six
    for _ in 0..6 {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        while !wire.is_empty() {
            let mut rest = wire.as_slice();
            server.read_tls(&mut rest).unwrap();
            wire = rest.to_vec();
            server.process_new_packets().map_err(|error| format!("server: {error}"))?;
        }
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        let mut rest = wire.as_slice();
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            client.process_new_packets().map_err(|error| format!("client: {error}"))?;
        }
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    Ok(Connected {
        user: server
            .peer_certificates()
            .and_then(|chain| Identity::from_client_certificate(&chain[0]))
            .map(|identity| identity.user),
        resumed: server.handshake_kind() == Some(HandshakeKind::Resumed),
        protocol: server.alpn_protocol().map(<[u8]>::to_vec),
    })
}

#[test]
fn node_is_identified_on_both_tls_versions() {
    let (_pki, server, mut client) = hub("versions");
    for versions in [TLS12, TLS13] {
        client.versions = versions;
        let connected = connect(&server, &client.config(), "localhost").unwrap();
        assert_eq!(connected.user.as_deref(), Some("system:node:edge-1"));
        assert_eq!(connected.protocol.as_deref(), Some(&b"http/1.1"[..]), "never h2");
    }
    connect(&server, &client.config(), "127.0.0.1").unwrap();
}

#[test]
fn resumed_session_keeps_its_identity() {
    let (_pki, server, mut client) = hub("resumption");
    for versions in [TLS12, TLS13] {
        client.versions = versions;
        let config = client.config();
        assert!(!connect(&server, &config, "localhost").unwrap().resumed);
        for _ in 0..3 {
            let again = connect(&server, &config, "localhost").unwrap();
            assert!(again.resumed, "one ticket per handshake is enough for the next");
            assert_eq!(again.user.as_deref(), Some("system:node:edge-1"));
        }
    }
}

#[test]
fn revocation_ends_resumable_sessions() {
    let (pki, server, mut client) = hub("tickets");
    for versions in [TLS12, TLS13] {
        client.versions = versions;
        let config = client.config();
        connect(&server, &config, "localhost").unwrap();
        assert!(connect(&server, &config, "localhost").unwrap().resumed, "the test sees a resumption");
        pki.end_sessions();
        assert!(!connect(&server, &config, "localhost").unwrap().resumed);
        assert!(connect(&server, &config, "localhost").unwrap().resumed, "sessions of after it are resumed");
    }
}

/// A session that the server kept itself would outlast a revocation.
#[test]
fn session_without_a_ticket_is_not_resumed() {
    let (_pki, server, mut client) = hub("session-ids");
    client.versions = TLS12;
    let mut config = Arc::unwrap_or_clone(client.config());
    config.resumption = Resumption::in_memory_sessions(8).tls12_resumption(Tls12Resumption::SessionIdOnly);
    let config = Arc::new(config);
    for _ in 0..3 {
        assert!(!connect(&server, &config, "localhost").unwrap().resumed);
    }
}

#[test]
fn client_without_a_certificate_is_anonymous() {
    let (_pki, server, mut client) = hub("anonymous");
    client.kubeconfig = None;
    assert_eq!(connect(&server, &client.config(), "localhost").unwrap().user, None);
}

#[test]
fn client_certificate_of_another_authority_is_refused() {
    let (_pki, server, mut client) = hub("stranger");
    let (_other, _, stranger) = hub("stranger-other");
    client.kubeconfig = stranger.kubeconfig;
    let error = connect(&server, &client.config(), "localhost").unwrap_err();
    assert!(error.starts_with("server: invalid peer certificate"), "{error}");
}

#[test]
fn client_refuses_a_hub_of_another_authority_or_name() {
    let (_pki, server, mut client) = hub("impostor");
    let error = connect(&server, &client.config(), "elsewhere").unwrap_err();
    assert!(error.contains("NotValidForName") || error.contains("not valid for name"), "{error}");
    client.trusts = hub("impostor-other").2.trusts;
    let error = connect(&server, &client.config(), "localhost").unwrap_err();
    assert!(error.contains("UnknownIssuer"), "{error}");
}

#[test]
fn serving_certificate_is_not_a_client_credential() {
    let (pki, server, client) = hub("usage");
    let serving = Credential::load(&pki.data_dir.join("pki/serving.pem")).unwrap();
    let text = kubeconfig::text("https://x:1", "", "x", &serving.certificate_pem(), &serving.key_pem());
    let error =
        connect(&server, &Client { kubeconfig: Some(text), ..client }.config(), "localhost").unwrap_err();
    assert!(error.starts_with("server: invalid peer certificate"), "{error}");
}

/// A thief signs with a node's key, as if it were an authority's.
#[test]
fn certificate_below_a_nodes_is_refused() {
    let (_pki, server, client) = hub("chain");
    let text = |field| String::from_utf8(embedded(client.kubeconfig.as_ref().unwrap(), field)).unwrap();
    let (node, key) = (text("client-certificate-data"), text("client-key-data"));
    let issuer = rcgen::Issuer::from_ca_cert_pem(&node, rcgen::KeyPair::from_pem(&key).unwrap()).unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
    params.distinguished_name.push(rcgen::DnType::CommonName, "admin");
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let own = rcgen::KeyPair::generate().unwrap();
    let forged = params.signed_by(&own, &issuer).unwrap();
    let chain = forged.pem() + &node;
    let text = kubeconfig::text("https://x:1", "", "x", &chain, &own.serialize_pem());
    let error =
        connect(&server, &Client { kubeconfig: Some(text), ..client }.config(), "localhost").unwrap_err();
    assert!(error.starts_with("server: invalid peer certificate"), "{error}");
}

/// A thief of an authority's key, which is retired for that, puts an authority of his own between: the server
/// would not find the retired one's name in what he shows.
#[test]
fn certificate_below_an_intermediate_is_refused() {
    let (_pki, server, client) = hub("intermediate");
    let stolen = std::fs::read_to_string(client._data.join("pki/ca.pem")).unwrap();
    let public = String::from_utf8(client.trusts.clone()).unwrap();
    let of_stolen = rcgen::KeyPair::from_pem(&stolen).unwrap();
    let authority = rcgen::Issuer::from_ca_cert_pem(&public, of_stolen).unwrap();
    let params = |name: &str| {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params
    };
    let mut between = params("x");
    between.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let between_key = rcgen::KeyPair::generate().unwrap();
    let between_pem = between.signed_by(&between_key, &authority).unwrap().pem();
    let between = rcgen::Issuer::from_ca_cert_pem(&between_pem, between_key).unwrap();
    let mut admin = params("admin");
    admin.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
    admin.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let own = rcgen::KeyPair::generate().unwrap();
    let chain = admin.signed_by(&own, &between).unwrap().pem() + &between_pem;
    let text = kubeconfig::text("https://x:1", "", "x", &chain, &own.serialize_pem());
    let error =
        connect(&server, &Client { kubeconfig: Some(text), ..client }.config(), "localhost").unwrap_err();
    assert!(error.starts_with("server: invalid peer certificate"), "{error}");
}

#[test]
fn board_in_1970_or_twenty_years_ahead_connects() {
    let (_pki, server, mut client) = hub("clocks");
    let year = Duration::days(365);
    for now in [datetime!(1970-01-01 00:00:05 UTC), OffsetDateTime::now_utc() + 20 * year] {
        client.now = now;
        let connected =
            connect(&server, &client.config(), "localhost").unwrap_or_else(|error| panic!("{now}: {error}"));
        assert_eq!(connected.user.as_deref(), Some("system:node:edge-1"), "{now}");
    }
    client.now = OffsetDateTime::now_utc() + 40 * year;
    assert!(
        connect(&server, &client.config(), "localhost").is_err(),
        "the test detects an expired certificate"
    );
}

#[test]
fn renewed_certificate_serves_new_connections() {
    let (pki, server, mut client) = hub("renewal");
    let config = client.config();
    connect(&server, &config, "localhost").unwrap();
    let later = OffsetDateTime::now_utc() + Duration::days(400);
    assert!(pki.renew(later).unwrap());
    assert!(connect(&server, &config, "localhost").unwrap().resumed, "sessions of before go on");
    // only the new certificate is valid at this time
    client.now = OffsetDateTime::now_utc() + Duration::days(25 * 365 + 200);
    connect(&server, &client.config(), "localhost").unwrap();
}

/// A client that knew the first authority alone, and one that knows both, through all steps of a rotation.
#[test]
fn rotation_of_the_authority_cuts_nobody_off() {
    let (_, _, client) = hub("rotation");
    let data = client._data.to_path_buf();
    let names = ["localhost".to_owned()];
    let now = client.now;
    let open = || Pki::open(&data, &names, now).unwrap();
    let knows_first = Client { _data: kedge_rig::Scratch::new("hub-rotation-first").unwrap(), ..client };
    let connects = |pki: &Pki, client: &Client| {
        connect(&pki.server_config().unwrap(), &client.config(), "localhost").map(|found| found.user)
    };
    let user = Ok(Some("system:node:edge-1".to_owned()));
    step(&data, Step::New).unwrap();
    assert_eq!(connects(&open(), &knows_first), user);
    step(&data, Step::Switch { back: false }).unwrap();
    let pki = open();
    assert_eq!(connects(&pki, &knows_first), user, "the new authority is vouched for by the old one");
    let both = node_kubeconfig(&data, "edge-1", Some("https://localhost:1".to_owned()), None, now).unwrap();
    let knows_new = Client {
        kubeconfig: Some(both),
        trusts: authorities::Authorities::load(&data).unwrap().signing().certificate_pem().into_bytes(),
        _data: kedge_rig::Scratch::new("hub-rotation-new").unwrap(),
        ..knows_first
    };
    assert_eq!(connects(&pki, &knows_new), user);
    step(&data, Step::Retire(1)).unwrap();
    let pki = open();
    assert_eq!(connects(&pki, &knows_new), user);
    let bundle = std::fs::read_to_string(pki.ca_path()).unwrap();
    assert_eq!(bundle, String::from_utf8(knows_new.trusts).unwrap(), "the retired one is not given out");
}
