//! The hub as a client of a program in a pod: one HTTP request on a connection that the pod's node passes
//! through.
//!
//! Always holds: bytes, headers and delay of an answer's head are limited; a body waits in the program until
//! the client reads; everything ends when the client leaves. Left to others: the choice of headers that pass
//! (`pod_proxy`), the body's way to the client (`relay`).

use std::io;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use kedge_hub_core::api_error::ApiError;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Longest TLS handshake with the program, over a slow link.
const TLS: Duration = Duration::from_secs(30);
/// Longest wait until the request's body is sent and the head of the answer received: a program may work on
/// it, and 3 MiB may cross a slow link. Short in tests, so that they need not wait.
const ANSWER: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(300) };
/// Most bytes of the head, and of one read.
const HEAD_BYTES: usize = 16 * 1024;
/// Most headers of the answer.
const HEADERS: usize = 64;

/// A request to a program.
#[derive(Debug)]
pub(crate) struct Question {
    /// The path of the program's port in the node's API.
    pub(crate) place: String,
    pub(crate) is_secure: bool,
    /// Its target is a path with a query.
    pub(crate) request: Request<Full<Bytes>>,
}

/// The program's answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) response: Response<Incoming>,
    _connection: Connection,
}

/// Ends the connection when dropped.
#[derive(Debug)]
struct Connection {
    task: AbortHandle,
    sender: SendRequest<Full<Bytes>>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// How the end of an answer's body is recognized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    Bytes(u64),
    Chunks,
    /// At the end of the connection: the body may be incomplete.
    Unknown,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Sends the request to the program at the other end.
pub(super) async fn ask(stream: DuplexStream, question: Question) -> Result<Answer, ApiError> {
    let stream: Box<dyn Stream> = if question.is_secure {
        // the name is not sent to the program
        let name = ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into());
        let connecting = TlsConnector::from(Arc::clone(&UNVERIFIED)).connect(name, stream);
        match timeout(TLS, connecting).await {
            Ok(Ok(stream)) => Box::new(stream),
            Ok(Err(error)) => return Err(ApiError::program_failed(&error.to_string())),
            Err(_) => return Err(late(TLS)),
        }
    } else {
        Box::new(stream)
    };
    let asking = async {
        let client = http1::Builder::new()
            .max_buf_size(HEAD_BYTES)
            .max_headers(HEADERS)
            .handshake(TokioIo::new(stream))
            .await?;
        let (sender, serving) = client;
        let task = tokio::spawn(async move {
            // the client learns of its errors from the answer
            let _ = serving.await;
        });
        let mut connection = Connection { task: task.abort_handle(), sender };
        let response = connection.sender.send_request(question.request).await?;
        Ok::<_, hyper::Error>(Answer { response, _connection: connection })
    };
    let answer = match timeout(ANSWER, asking).await {
        Ok(answer) => answer.map_err(|error| ApiError::program_failed(&chain(&error)))?,
        Err(_) => return Err(late(ANSWER)),
    };
    match answer.response.status() {
        StatusCode::SWITCHING_PROTOCOLS => {
            Err(ApiError::program_failed("it answered 101 to a request that did not ask for an upgrade"))
        }
        _ => Ok(answer),
    }
}

fn late(limit: Duration) -> ApiError {
    let message =
        format!("error trying to reach service: the program did not answer within {} s", limit.as_secs());
    ApiError::from_status(504, message)
}

/// The text of an error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

impl Answer {
    /// True if the answer has no body, or the body has ended.
    pub(super) fn is_over(&self) -> bool {
        self.response.body().is_end_stream()
    }

    pub(super) fn length(&self) -> Length {
        let is_in_chunks = || {
            let encodings = self.response.headers().get_all(header::TRANSFER_ENCODING).iter();
            encodings.filter_map(|value| value.to_str().ok()).any(|value| value.ends_with("chunked"))
        };
        match self.response.body().size_hint().exact() {
            Some(bytes) => Length::Bytes(bytes),
            None if is_in_chunks() => Length::Chunks,
            None => Length::Unknown,
        }
    }

    /// The next piece of the body; `None` at its end. Cancel safe.
    pub(super) async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let Some(frame) = self.response.body_mut().frame().await else { return Ok(None) };
            match frame.map_err(io::Error::other)?.into_data() {
                Ok(data) if !data.is_empty() => return Ok(Some(data.to_vec())),
                // trailers are not passed on
                _ => {}
            }
        }
    }
}

/// As upstream: pods have no certificates that a client could verify.
static UNVERIFIED: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("the provider has what these versions take");
    let mut config =
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Any(provider))).with_no_client_auth();
    // each request has a connection of its own, and must not be linkable to others
    config.resumption = rustls::client::Resumption::disabled();
    config.enable_sni = false;
    Arc::new(config)
});

/// Accepts any certificate.
#[derive(Debug)]
struct Any(Arc<CryptoProvider>);

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn question() -> Question {
        let request =
            Request::post("/a?b=c").header("host", "h").body(Full::new(Bytes::from_static(b"body")));
        Question { place: "/podPort/u/10.0.0.2/80".to_owned(), is_secure: false, request: request.unwrap() }
    }

    /// A program that reads the request to its end and then sends these bytes.
    async fn answers(program: &mut DuplexStream, said: &[u8]) -> String {
        let mut asked = Vec::new();
        while !asked.ends_with(b"body") {
            asked.push(program.read_u8().await.unwrap());
        }
        program.write_all(said).await.unwrap();
        String::from_utf8(asked).unwrap()
    }

    /// The result for a program's answer; also returns the program's end, so that it stays open.
    async fn answered(said: &[u8]) -> (Result<Answer, ApiError>, DuplexStream) {
        let (stream, mut program) = tokio::io::duplex(1 << 20);
        let (answer, _) = tokio::join!(ask(stream, question()), answers(&mut program, said));
        (answer, program)
    }

    #[track_caller]
    fn refused(answer: Result<Answer, ApiError>, code: u16, text: &str) {
        let error = answer.expect_err("it is refused");
        assert_eq!(error.code, code, "{error}");
        assert!(error.message.starts_with("error trying to reach service: "), "{error}");
        assert!(error.message.contains(text), "{error}");
    }

    async fn body(mut answer: Answer) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        while let Some(piece) = answer.next().await? {
            body.extend_from_slice(&piece);
        }
        Ok(body)
    }

    #[tokio::test]
    async fn program_is_asked_once_and_answers_in_any_form() {
        for (said, length) in [
            ("HTTP/1.1 404 No\r\nContent-Length: 3\r\n\r\none", Length::Bytes(3)),
            (
                "HTTP/1.1 404 \r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n0\r\nlate: 1\r\n\r\n",
                Length::Chunks,
            ),
            ("HTTP/1.0 404 No\r\n\r\none", Length::Unknown),
            ("HTTP/1.1 100 \r\n\r\nHTTP/1.1 404 No\r\nContent-Length: 3\r\n\r\none", Length::Bytes(3)),
        ] {
            let (stream, mut program) = tokio::io::duplex(4096);
            let (answer, asked) =
                tokio::join!(ask(stream, question()), answers(&mut program, said.as_bytes()));
            assert!(asked.starts_with("POST /a?b=c HTTP/1.1\r\n"), "{asked}");
            assert!(asked.contains("content-length: 4\r\n"), "{asked}");
            let answer = answer.unwrap();
            assert_eq!((answer.response.status().as_u16(), answer.length()), (404, length), "{said}");
            assert!(!answer.is_over());
            program.shutdown().await.unwrap();
            assert_eq!(body(answer).await.unwrap(), b"one", "{said}");
            // the client's end has closed the connection
            assert_eq!(program.read(&mut [0]).await.unwrap(), 0, "{said}");
        }
        let (answer, _program) = answered(b"HTTP/1.1 204 \r\n\r\n").await;
        assert!(answer.unwrap().is_over());
    }

    #[tokio::test]
    async fn program_with_any_certificate_is_asked_over_tls() {
        let own = rcgen::generate_simple_self_signed(["elsewhere".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![own.cert.der().clone()], key)
            .unwrap();
        let (stream, program) = tokio::io::duplex(4096);
        let serving = async {
            let mut program =
                tokio_rustls::TlsAcceptor::from(Arc::new(config)).accept(program).await.unwrap();
            let mut asked = vec![0; 1024];
            let mut count = 0;
            while !asked[..count].ends_with(b"body") {
                count += program.read(&mut asked[count..]).await.unwrap();
            }
            program.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none").await.unwrap();
            program
        };
        let secure = Question { is_secure: true, ..question() };
        let (answer, _program) = tokio::join!(ask(stream, secure), serving);
        assert_eq!(body(answer.unwrap()).await.unwrap(), b"one");
    }

    #[tokio::test]
    async fn program_that_answers_nonsense_is_refused() {
        let refuses = async |said: &[u8], text: &str| refused(answered(said).await.0, 503, text);
        refuses(b"SSH-2.0-x\r\n\r\n", "invalid HTTP version").await;
        refuses(b"HTTP/1.1 101 \r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "answered 101").await;
        let endless = [b"HTTP/1.1 200 OK\r\na: ".as_slice(), &[b'x'; 100_000]].concat();
        refuses(&endless, "message head is too large").await;
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(HEADERS + 1));
        refuses(many.as_bytes(), "message head is too large").await;
        refuses(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "content-length").await;
        refuses(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "content-length").await;
        let (stream, program) = tokio::io::duplex(1024);
        drop(program);
        refused(ask(stream, question()).await, 503, "");
        // an answer before the request
        let (stream, mut program) = tokio::io::duplex(1024);
        program.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        refused(ask(stream, question()).await, 503, "unexpected message");
        let secure = Question { is_secure: true, ..question() };
        let (stream, mut program) = tokio::io::duplex(4096);
        program.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        refused(ask(stream, secure).await, 503, "corrupt message");
    }

    #[tokio::test]
    async fn program_that_says_too_little_in_time_is_late() {
        let endless = "HTTP/1.1 100 \r\n\r\n".repeat(1000);
        for said in ["", "HTTP/1.1 200 OK\r\n", &endless] {
            let (answer, mut program) = answered(said.as_bytes()).await;
            refused(answer, 504, "did not answer within");
            assert_eq!(program.read(&mut [0]).await.unwrap(), 0, "its connection ends");
        }
        // a program that reads nothing
        let (stream, _program) = tokio::io::duplex(8);
        refused(ask(stream, question()).await, 504, "did not answer within");
    }

    #[tokio::test]
    async fn body_of_a_program_is_whole_or_an_error() {
        for said in [
            "Content-Length: 99999999999\r\n\r\none",
            "Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n",
            "Transfer-Encoding: chunked\r\n\r\n3\r\none\r\nx\r\n",
            "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\none",
        ] {
            let (answer, mut program) = answered(format!("HTTP/1.1 200 OK\r\n{said}").as_bytes()).await;
            program.shutdown().await.unwrap();
            assert!(body(answer.unwrap()).await.is_err(), "{said}");
        }
        // the size line of a chunk never ends
        let endless =
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;{}", "x".repeat(100_000));
        let (answer, _program) = answered(endless.as_bytes()).await;
        assert!(body(answer.unwrap()).await.is_err());
    }

    #[tokio::test]
    async fn body_that_nobody_reads_stays_with_its_program() {
        let (stream, mut program) = tokio::io::duplex(1024);
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let (answer, _) = tokio::join!(ask(stream, question()), answers(&mut program, head));
        let mut sent = 0;
        let chunk = [b"400\r\n".as_slice(), &[b'x'; 1024], b"\r\n"].concat();
        let flood = async {
            loop {
                program.write_all(&chunk).await.unwrap();
                sent += chunk.len();
            }
        };
        let _ = timeout(Duration::from_millis(100), flood).await;
        assert!(sent <= 4 * HEAD_BYTES, "{sent} bytes were taken");
        drop(answer);
        // the connection ends with its client
        let ended = async { while program.write_all(&chunk).await.is_ok() {} };
        timeout(Duration::from_secs(60), ended).await.expect("it ends");
    }
}
