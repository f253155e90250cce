//! Input that no proper client sends: broken handshakes and requests, odd certificate requests, watches,
//! protobuf and patches.
//!
//! Always holds: each is refused in the form of its protocol or has exactly its stated effect; a node at the
//! same address is served after each. Left to others: costly requests (`tests/attacks.rs`), framing that a
//! proxy may read differently (there, too), requests with only invalid content (`refusals`).

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

use super::server::{Client, Hub};
use super::{JSON, LEASES, MAPS, NODES};

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const REVISIONS: &str = "/apis/apps/v1/namespaces/default/controllerrevisions";

/// A node that keeps renewing, each time on a new connection.
struct Neighbour {
    client: Client,
    renewals: u32,
}

impl Neighbour {
    fn new(hub: &Hub) -> Neighbour {
        let mut client = hub.node("neighbour");
        client.post(NODES, &json!({"metadata": {"name": "neighbour"}})).expect(201);
        let lease = json!({"metadata": {"name": "neighbour"}, "spec": {"holderIdentity": "neighbour"}});
        client.post(LEASES, &lease).expect(201);
        Neighbour { client, renewals: 0 }
    }

    #[track_caller]
    fn is_served(&mut self) {
        self.renewals += 1;
        let renewal = json!({"spec": {"renewTime": format!("2026-11-22T17:00:00.{:06}Z", self.renewals)}});
        self.client = self.client.another();
        self.client.patch("merge", &format!("{LEASES}/neighbour"), &renewal).expect(200);
    }
}

/// A TLS record of this type, with a length that may be wrong.
fn record(kind: u8, length: usize, content: &[u8]) -> Vec<u8> {
    [&[kind, 3, 1][..], &(length as u16).to_be_bytes(), content].concat()
}

fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &(content.len() as u16).to_be_bytes(), content].concat()
}

/// A ClientHello of this version, valid except perhaps for its extensions; without the header of its record.
fn hello(version: [u8; 2], extensions: &[u8]) -> Vec<u8> {
    let suites = [0, 4, 0xc0, 0x2b, 0xc0, 0x2f];
    let listed = [&(extensions.len() as u16).to_be_bytes()[..], extensions].concat();
    let body = [&version[..], &[7; 32], &[0], &suites, &[1, 0], &listed].concat();
    [&[1, 0][..], &(body.len() as u16).to_be_bytes(), &body].concat()
}

#[test]
fn broken_handshakes_end_at_once() {
    let hub = Hub::new();
    let mut neighbour = Neighbour::new(&hub);
    let signatures = extension(13, &[0, 2, 4, 3]);
    let whole = |hello: Vec<u8>| record(22, hello.len(), &hello);
    let in_bytes = |hello: Vec<u8>| hello.iter().flat_map(|byte| record(22, 1, &[*byte])).collect();
    let padded = [&signatures[..], &extension(0xfafa, &[0; 20_000])].concat();
    let noise: Vec<u8> = (0..3000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let attempts: [(&str, Vec<u8>); 17] = [
        ("SSL 2", [&[0x80, 0x2e, 1, 0, 2, 0, 0x15, 0, 0, 0, 0x10][..], &[0; 37]].concat()),
        ("SSL 3", whole(hello([3, 0], &signatures))),
        ("TLS 1.0", whole(hello([3, 1], &signatures))),
        ("TLS 1.1", whole(hello([3, 2], &signatures))),
        (
            "TLS 1.1, by the extension",
            whole(hello([3, 3], &[&signatures[..], &extension(43, &[4, 3, 2, 3, 1])].concat())),
        ),
        ("an extension twice", whole(hello([3, 3], &[&signatures[..], &signatures].concat()))),
        ("two hellos", whole(hello([3, 3], &signatures)).repeat(2)),
        ("a hello in records of a byte", in_bytes(hello([3, 2], &padded))),
        (
            "a hello of 16 MiB",
            record(22, 16_384, &[&[1, 0xff, 0xff, 0xff][..], &[0; 16_380]].concat()).repeat(8),
        ),
        ("zeros", vec![0; 2000]),
        ("noise", noise),
        ("another protocol", b"SSH-2.0-x\r\n".to_vec()),
        ("empty records", record(22, 0, b"").repeat(5000)),
        ("a record that is too long", record(22, 0xffff, &[0; 70_000])),
        ("warnings", record(21, 2, &[1, 90]).repeat(5000)),
        ("changes of the cipher", record(20, 1, &[1]).repeat(5000)),
        ("data", record(23, 16_384, &[0; 16_384])),
    ];
    let before = hub.log().len();
    for (what, bytes) in attempts {
        let mut socket = TcpStream::connect(hub.url.strip_prefix("https://").unwrap()).unwrap();
        // the connection may have ended before everything is sent
        let _ = socket.write_all(&bytes);
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        // an alert at most
        assert!(answer.len() <= 7 && answer.first().is_none_or(|kind| *kind == 21), "{what}: {answer:?}");
        neighbour.is_served();
    }
    let unfinished = || {
        let text = String::from_utf8(hub.admin().get("/metrics").body).unwrap();
        let found = text.lines().find_map(|line| line.strip_prefix("kedge_hub_unfinished_handshakes "));
        found.unwrap().parse::<u64>().unwrap()
    };
    while unfinished() > 0 {
        std::thread::yield_now();
    }
    let logged = hub.log().len() - before;
    assert!(logged < 2000, "{logged} bytes of log");
}

#[test]
fn odd_requests_get_one_answer_each() {
    let hub = Hub::new();
    let mut neighbour = Neighbour::new(&hub);
    let get = |rest: &str| format!("GET /livez HTTP/1.1\r\nhost: h\r\n{rest}connection: close\r\n\r\n");
    let chunked = |chunks: &str| {
        format!(
            "POST {REVIEWS} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n{chunks}"
        )
    };
    let long = "n".repeat(30_000);
    let trailers = "t: v\r\n".repeat(3000);
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    for (request, codes) in [
        (get(&format!("{long}: v\r\n")), "200"),
        (get(&format!("{long}{long}: v\r\n")), "431"),
        (get("x: a\0b\r\n"), "400"),
        (get("content-length: 18446744073709551616\r\n"), "400"),
        (get("content-length: 2, 2\r\n\r\n{}"), "400"),
        (get("").replace("1.1", "2.0"), "400"),
        (get("").replace("1.1", "1.10"), "400"),
        (get("transfer-encoding: chunked\r\n").replace("1.1", "1.0"), "400"),
        (get("").replace("GET", &long), "405"),
        (format!("\r\n\r\n{}", get("")), "400"),
        (get("expect: 200-ok\r\n"), "200"),
        (get(upgrade), "200"),
        (
            format!("{}{}", "GET /livez HTTP/1.1\r\nhost: h\r\n\r\n".repeat(50), get("")),
            &["200"; 51].join(" "),
        ),
        (chunked("fffffffffffffffff\r\n{}\r\n0\r\n\r\n"), "400"),
        (chunked("-2\r\n{}\r\n0\r\n\r\n"), "400"),
        (chunked("2\n{}\n0\n\n"), "400"),
        (chunked(&format!("2;{}\r\n{{}}\r\n0\r\n\r\n", long.repeat(3))), "400"),
        (chunked(&format!("2\r\n{{}}\r\n0\r\n{trailers}\r\n")), "400"),
        // bytes after a body in chunks are not a request
        (chunked(&format!("2\r\n{{}}\r\n0\r\ncontent-length: 9\r\n\r\n{}", get(""))), "201"),
    ] {
        let mut client = hub.admin();
        client.write_raw(request.as_bytes()).unwrap();
        let answer = client.read_to_end();
        let found: Vec<&str> = answer.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect();
        assert_eq!(found.join(" "), codes, "{request:.120}: {answer}");
        neighbour.is_served();
    }
}

/// Small chunks cost the processor as much as kilobytes each. Chunks of one byte would arrive more slowly
/// than a body may, on a busy machine.
#[test]
fn body_in_too_many_pieces_is_refused() {
    const CHUNK: usize = 40;
    let hub = Hub::new();
    let mut neighbour = Neighbour::new(&hub);
    let mut node = hub.node("node");
    let head = format!(
        "POST {REVIEWS} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    let blanks = format!("{CHUNK:x}\r\n{}\r\n", " ".repeat(CHUNK));
    let mut send = |chunks: usize| {
        node = node.another();
        node.write_raw(head.as_bytes()).unwrap();
        // it may be refused before everything is sent
        let _ = node.write_raw(format!("{}2\r\n{{}}\r\n0\r\n\r\n", blanks.repeat(chunks)).as_bytes());
        node.read_reply().unwrap()
    };
    assert_eq!(send(1000).code, 201);
    let refused = send(20_000).expect(400);
    assert_eq!(refused["message"], "the body came in more than 16384 pieces");
    neighbour.is_served();
}

#[test]
fn odd_watches_are_refused_or_go_on() {
    let hub = Hub::new();
    let mut admin = hub.admin();
    for (query, code) in [
        ("watch=TRUE", 400),
        ("watch=true&resourceVersion=-1", 400),
        ("watch=true&resourceVersion=18446744073709551616", 400),
        ("watch=true&resourceVersion=9223372036854775807", 504),
        ("watch=true&resourceVersion=0x5", 400),
        ("watch=true&timeoutSeconds=-1", 400),
        ("watch=true&timeoutSeconds=1.5", 400),
        ("watch=true&allowWatchBookmarks=x", 400),
        ("watch=true&sendInitialEvents=true", 422),
        ("watch=true&resourceVersionMatch=Exact", 422),
        ("watch=true&labelSelector=%2C%2C", 400),
        ("watch=true&fieldSelector=a%3D%3D%3Db", 400),
        ("sendInitialEvents=true", 422),
        ("limit=99999999999999999999", 400),
        ("resourceVersion=0&resourceVersionMatch=Exact", 422),
    ] {
        let reply = admin.get(&format!("{MAPS}?{query}"));
        assert_eq!((reply.code, &reply.json()["kind"]), (code, &json!("Status")), "{query}");
    }
    let mut head = admin.another();
    head.write_raw(
        format!("HEAD {MAPS}?watch=true HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").as_bytes(),
    )
    .unwrap();
    assert!(head.read_to_end().starts_with("HTTP/1.1 405 "));
    // no time is given, or more than a watch ever lasts
    for (number, query) in ["timeoutSeconds=0", "timeoutSeconds=18446744073709551615"].iter().enumerate() {
        let mut watch = admin.watch(&format!("{MAPS}?watch=true&labelSelector=odd&limit=1&{query}"));
        let name = format!("m{number}");
        admin.post(MAPS, &json!({"metadata": {"name": name, "labels": {"odd": ""}}})).expect(201);
        while watch.event() != format!("ADDED {name}") {}
    }
}

/// A protobuf body of a ConfigMap whose message has these bytes.
fn protobuf(message: &[u8]) -> Vec<u8> {
    let mut length = message.len();
    let mut body = b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12".to_vec();
    while length > 127 {
        body.push(length as u8 | 0x80);
        length >>= 7;
    }
    body.push(length as u8);
    [&body[..], message].concat()
}

#[test]
fn odd_protobuf_and_deep_patches_are_refused() {
    const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
    let hub = Hub::new();
    let mut neighbour = Neighbour::new(&hub);
    let mut admin = hub.admin();
    let mut check = |method: &str, path: &str, media: &str, body: &[u8], codes: &[u16], what: &str| {
        let reply = admin.send(method, path, &[("content-type", media)], body);
        assert!(
            codes.contains(&reply.code),
            "{what}: {} {}",
            reply.code,
            String::from_utf8_lossy(&reply.body)
        );
    };
    let named =
        |name: &str| [&[0x0a, name.len() as u8 + 2, 0x0a, name.len() as u8][..], name.as_bytes()].concat();
    let after = |rest: &[u8]| [&named("p")[..], rest].concat();
    for (what, message, code) in [
        // overlong, and within 64 bits: the same number
        (
            "a tag of ten bytes",
            [&[0x8a, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0][..], &named("long-tag")[1..]]
                .concat(),
            201,
        ),
        ("a tag of twelve bytes", [&[0x8a][..], &[0x80; 10], &[0], &named("p")[1..]].concat(), 400),
        ("a number without end", vec![0xff; 100], 400),
        ("a length beyond the end", vec![0x0a, 0xff, 0x7f], 400),
        ("the largest length", [&[0x0a][..], &[0xff; 9], &[1]].concat(), 400),
        ("field 0", after(&[2, 0]), 400),
        ("the largest field", after(&[0xfa, 0xff, 0xff, 0xff, 0x0f, 0]), 400),
        ("a group", after(&[0x1b, 0x1c]), 400),
        ("an unknown wire type", after(&[0x1e]), 400),
        ("a number for a message", vec![8, 1], 400),
        ("text that is none", after(b"\x12\x07\x0a\x01k\x12\x02\xff\xfe"), 400),
        ("a million entries", after(&[0x12, 0].repeat(1_000_000)), 413),
    ] {
        check("POST", MAPS, PROTOBUF, &protobuf(&message), &[code], what);
        neighbour.is_served();
    }
    admin_makes(&hub, REVISIONS, &json!({"metadata": {"name": "r"}, "revision": 1, "data": {"a": 1}}));
    admin_makes(&hub, MAPS, &json!({"metadata": {"name": "m"}}));
    for levels in [128, 1000] {
        let deep = format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels));
        let object = |kind: &str, name: &str| {
            format!("{{\"apiVersion\":{kind},\"metadata\":{{\"name\":\"{name}\"}},\"data\":{deep}}}")
        };
        let targets = [
            (format!("{MAPS}/m"), object("\"v1\",\"kind\":\"ConfigMap\"", "m")),
            (
                format!("{REVISIONS}/r"),
                object("\"apps/v1\",\"kind\":\"ControllerRevision\",\"revision\":1", "r"),
            ),
        ];
        for (path, object) in targets {
            let what = format!("{levels} levels for {path}");
            for format in ["merge-patch+json", "strategic-merge-patch+json"] {
                check("PATCH", &path, &format!("application/{format}"), object.as_bytes(), &[400], &what);
            }
            let apply = format!("{path}?fieldManager=t&force=true");
            check("PATCH", &apply, "application/apply-patch+yaml", object.as_bytes(), &[400], &what);
            for operation in ["add", "test", "replace"] {
                let patch = format!("[{{\"op\":\"{operation}\",\"path\":\"/data\",\"value\":{deep}}}]");
                check("PATCH", &path, "application/json-patch+json", patch.as_bytes(), &[400], &what);
            }
            let patch = json!([{"op": "add", "path": "/a".repeat(levels), "value": 1}]).to_string();
            check("PATCH", &path, "application/json-patch+json", patch.as_bytes(), &[422], &what);
            let options = format!("{{\"preconditions\":{deep}}}");
            check("DELETE", &path, JSON.1, options.as_bytes(), &[400], &what);
            neighbour.is_served();
        }
    }
}

#[track_caller]
fn admin_makes(hub: &Hub, path: &str, object: &Value) {
    hub.admin().post(path, object).expect(201);
}

/// DER: a value of this type.
fn der(kind: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let prefix = match length {
        0..128 => vec![kind, length as u8],
        128..0x1_0000 => [&[kind, 0x82][..], &(length as u16).to_be_bytes()].concat(),
        _ => [&[kind, 0x84][..], &(length as u32).to_be_bytes()].concat(),
    };
    [&prefix[..], content].concat()
}

/// A certificate request with an RSA key of so many bytes, and an invalid signature.
fn rsa_request(bytes: usize) -> Vec<u8> {
    let sequence = |parts: &[Vec<u8>]| der(0x30, &parts.concat());
    let algorithm = |last: u8| {
        let name = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, last];
        sequence(&[der(6, &name), der(5, b"")])
    };
    let modulus = [&[0, 0xff][..], &vec![0x5b; bytes - 1]].concat();
    let key = sequence(&[der(2, &modulus), der(2, &[1, 0, 1])]);
    let key = sequence(&[algorithm(1), der(3, &[&[0][..], &key].concat())]);
    let name = sequence(&[der(0x31, &sequence(&[der(6, &[0x55, 4, 3]), der(12, b"jane")]))]);
    let info = sequence(&[der(2, &[0]), name, key, der(0xa0, b"")]);
    sequence(&[info, algorithm(11), der(3, &[&[0][..], &vec![1; bytes]].concat())])
}

fn block(der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n")
}

#[test]
fn odd_certificate_requests_give_nothing_away() {
    use base64::Engine as _;
    use rcgen::{CertificateParams, CustomExtension, DistinguishedName, DnType, KeyPair};
    const BASE64: base64::engine::GeneralPurpose = base64::engine::general_purpose::STANDARD;
    let hub = Hub::new();
    let mut neighbour = Neighbour::new(&hub);
    let mut admin = hub.admin();
    let key = KeyPair::generate().unwrap();
    let made = |names: &[(DnType, &str)], extensions: Vec<CustomExtension>| {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        names.iter().for_each(|(of, name)| params.distinguished_name.push(of.clone(), *name));
        params.custom_extensions = extensions;
        params.serialize_request(&key).unwrap().der().to_vec()
    };
    let jane = (DnType::CommonName, "jane");
    // the extension of a certificate authority, given twice
    let authority = CustomExtension::from_oid_content(&[2, 5, 29, 19], vec![0x30, 3, 1, 1, 0xff]);
    let signs = CustomExtension::from_oid_content(&[2, 5, 29, 15], vec![3, 2, 1, 6]);
    let greedy = vec![authority.clone(), authority, signs.clone(), signs];
    // a different type for the library, the same type in the request
    let second = (DnType::CustomDnType(vec![2, 5, 4, 10]), "guests");
    let longer = [made(std::slice::from_ref(&jane), Vec::new()), vec![0; 600_000]].concat();
    let groups = [jane.clone(), (DnType::OrganizationName, "people"), second];
    for (what, request, expect) in [
        ("authority", block(&made(&[jane], greedy)), Ok(())),
        ("no-name", block(&made(&[], Vec::new())), Err("no common name")),
        ("groups", block(&made(&groups, Vec::new())), Err("the subject has 2 organizations")),
        ("rsa-16384", block(&rsa_request(2048)), Err("unable to verify")),
        ("rsa-524288", block(&rsa_request(65_536)), Err("unable to verify")),
        ("longer", block(&longer), Err("422")),
    ] {
        let spec = json!({"request": BASE64.encode(request), "signerName": "kubernetes.io/kube-apiserver-client",
            "usages": ["client auth", "digital signature"]});
        let reply = admin.post(REQUESTS, &json!({"metadata": {"name": what}, "spec": spec}));
        if expect == Err("422") {
            reply.expect(422);
            continue;
        }
        reply.expect(201);
        let approved = json!({"type": "Approved", "status": "True", "reason": "R", "message": "m"});
        let path = format!("{REQUESTS}/{what}");
        admin
            .patch("merge", &format!("{path}/approval"), &json!({"status": {"conditions": [approved]}}))
            .expect(200);
        let judged = loop {
            neighbour.is_served();
            let status = admin.get(&path).expect(200)["status"].clone();
            if status["certificate"].is_string() || status["conditions"][1].is_object() {
                break status;
            }
        };
        match expect {
            Ok(()) => {
                let pem = BASE64.decode(judged["certificate"].as_str().unwrap()).unwrap();
                let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).unwrap();
                let certificate = pem.parse_x509().unwrap();
                assert!(!certificate.is_ca(), "{what}");
                assert_eq!(
                    certificate.key_usage().unwrap().unwrap().value.flags,
                    1,
                    "a signature, nothing else"
                );
            }
            Err(why) => {
                let message = judged["conditions"][1]["message"].as_str().unwrap();
                assert!(message.contains(why), "{what}: {message}");
            }
        }
    }
}
