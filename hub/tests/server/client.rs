//! A client of the hub in which a failed step ends the test, so that a test reads as a list of requests.
//!
//! One connection per client, dialled when it is needed. The bytes are sent and received by
//! `kedge_rig::client`.

use std::io;
use std::net::TcpStream;

use kedge_rig::client::{Answer, Connection, Events, Identity};
use serde_json::Value;

use super::Hub;

/// One identity's connection.
pub(crate) struct Client {
    identity: Identity,
    connection: Option<Connection>,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) code: u16,
    pub(crate) body: Vec<u8>,
    answer: Answer,
}

impl Reply {
    fn new(mut answer: Answer) -> Reply {
        Reply { code: answer.status, body: std::mem::take(&mut answer.body), answer }
    }

    /// Status line and headers.
    pub(crate) fn head(&self) -> &str {
        &self.answer.head
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&self.body)))
    }

    #[track_caller]
    pub(crate) fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}", String::from_utf8_lossy(&self.body));
        if self.body.is_empty() { Value::Null } else { self.json() }
    }

    /// Expects a Status with this message.
    #[track_caller]
    pub(crate) fn refused(self, code: u16, message: &str) {
        let status = self.expect(code);
        assert_eq!(status["kind"], "Status");
        assert_eq!(status["message"], message);
    }

    pub(crate) fn header<'a>(&'a self, name: &'a str) -> Vec<&'a str> {
        self.answer.header(name)
    }
}

impl Hub {
    pub(crate) fn admin(&self) -> Client {
        Client::new(&std::fs::read_to_string(self.data_dir.join("admin.kubeconfig")).unwrap(), &self.url)
    }

    /// A client with credentials of `kedge-hub node-kubeconfig`.
    pub(crate) fn node(&self, name: &str) -> Client {
        let outcome = self.command(&["node-kubeconfig", name]);
        assert_eq!(outcome.code, Some(0), "{}", outcome.err);
        Client::new(&outcome.out, &self.url)
    }

    /// A client that trusts the hub, and shows no certificate.
    pub(crate) fn anonymous(&self) -> Client {
        let authority = std::fs::read(self.data_dir.join("ca.crt")).unwrap();
        Client { identity: Identity::anonymous(&authority, &self.url).unwrap(), connection: None }
    }
}

impl Client {
    /// A client with the credentials of a kubeconfig; the hub may listen on another address than the one in
    /// it.
    pub(crate) fn new(kubeconfig: &str, url: &str) -> Client {
        Client { identity: Identity::read(kubeconfig).unwrap().at(url).unwrap(), connection: None }
    }

    /// Another connection of the same identity, from another address of this machine.
    pub(crate) fn from(&self, last: u8) -> Client {
        let identity = self.identity.clone().from_address([127, 0, 1, last].into());
        Client { identity, connection: None }
    }

    /// Another connection of the same identity, over a link on which few bytes are in flight at a time.
    pub(crate) fn narrow(&self) -> Client {
        Client { identity: self.identity.clone().over_narrow_link(), connection: None }
    }

    /// The open connection, of which nothing more is read: from now on all its memory is the hub's.
    pub(crate) fn into_socket(self) -> TcpStream {
        self.connection.expect("something was sent").into_socket()
    }

    /// A connection to the hub without a handshake.
    pub(crate) fn dial(&self) -> TcpStream {
        self.identity.dial().unwrap()
    }

    /// Another connection of the same identity.
    pub(crate) fn another(&self) -> Client {
        Client { identity: self.identity.clone(), connection: None }
    }

    /// The open connection, or a new one. The caller puts it back if it can still be used.
    fn take_connection(&mut self) -> io::Result<Connection> {
        self.connection.take().map_or_else(|| self.identity.connect(), Ok)
    }

    /// Makes one request; an error means a broken connection.
    pub(crate) fn try_send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Reply> {
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let mut connection = self.take_connection()?;
        let answer = connection.request(method, path, &headers, body)?;
        self.connection = Some(connection);
        Ok(Reply::new(answer))
    }

    /// Makes a request on the connection of the last one; an error if that is closed.
    pub(crate) fn try_on_the_same(&mut self, method: &str, path: &str) -> io::Result<Reply> {
        assert!(self.connection.is_some(), "there was no request before");
        self.try_send(method, path, &[], b"")
    }

    /// Sends bytes unchanged.
    pub(crate) fn write_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut connection = self.take_connection()?;
        connection.write(bytes)?;
        self.connection = Some(connection);
        Ok(())
    }

    /// The next answer to bytes sent with [`Client::write_raw`].
    pub(crate) fn read_reply(&mut self) -> io::Result<Reply> {
        self.connection.as_mut().expect("something was sent").answer().map(Reply::new)
    }

    /// Reads up to and including this text.
    #[track_caller]
    pub(crate) fn read_until(&mut self, end: &str) -> String {
        let bytes = self.connection.as_mut().expect("something was sent").read_until(end.as_bytes());
        String::from_utf8(bytes.unwrap()).unwrap()
    }

    /// Reads up to the connection's end.
    pub(crate) fn read_to_end(&mut self) -> String {
        let bytes = self.connection.as_mut().expect("something was sent").read_to_end();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[track_caller]
    pub(crate) fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        self.try_send(method, path, headers, body).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    #[track_caller]
    pub(crate) fn get(&mut self, path: &str) -> Reply {
        self.send("GET", path, &[], b"")
    }

    #[track_caller]
    pub(crate) fn post(&mut self, path: &str, value: &Value) -> Reply {
        self.send("POST", path, &[("content-type", "application/json")], value.to_string().as_bytes())
    }

    #[track_caller]
    pub(crate) fn put(&mut self, path: &str, value: &Value) -> Reply {
        self.send("PUT", path, &[("content-type", "application/json")], value.to_string().as_bytes())
    }

    /// `format`: `json`, `merge` or `strategic-merge`.
    #[track_caller]
    pub(crate) fn patch(&mut self, format: &str, path: &str, value: &Value) -> Reply {
        let media = format!("application/{format}-patch+json");
        self.send("PATCH", path, &[("content-type", &media)], value.to_string().as_bytes())
    }

    #[track_caller]
    pub(crate) fn delete(&mut self, path: &str) -> Reply {
        self.send("DELETE", path, &[], b"")
    }

    /// A watch on a connection of its own.
    #[track_caller]
    pub(crate) fn watch(&self, path: &str) -> Watch {
        self.try_watch(path).unwrap_or_else(|code| panic!("watch {path}: {code}"))
    }

    /// The same against a hub that may be gone (0) or refuse (the status).
    pub(crate) fn try_watch(&self, path: &str) -> Result<Watch, u16> {
        self.identity.events(path).unwrap_or(Err(0)).map(Watch)
    }
}

/// An open watch.
pub(crate) struct Watch(Events);

impl Watch {
    /// The next event; `None` when the watch has ended.
    pub(crate) fn next(&mut self) -> Option<Value> {
        self.0.next().ok()?
    }

    /// `TYPE name` of the next event.
    #[track_caller]
    pub(crate) fn event(&mut self) -> String {
        let event = self.next().expect("the watch has not ended");
        let name = event["object"]["metadata"]["name"].as_str().unwrap_or("");
        format!("{} {name}", event["type"].as_str().unwrap()).trim().to_owned()
    }
}
