//! Requests for a certificate of this node: each on a thread of its own, because there are a few in a year.
//!
//! Always holds: each order is answered by one event. Leaves to others: when and what to ask (core).

use super::requests::ApiServer;
use super::thread::spawn;
use crate::errors::chain;
use crate::identity::request::{self, State, Wanted, shown};
use crate::identity::store::issued;
use crate::net::client::{Api, Client};
use crate::net::error::NetError;
use kedge_api::NODE_SIGNER;
use kedge_core::Event;
use kedge_core::identity::{Asked, By, IdentityEvent};
use std::path::{Path, PathBuf};

pub(super) fn ask(server: &ApiServer, bootstrap: Option<PathBuf>, by: By, name: String, request: String) {
    let (asker, events) = (server.clone(), server.events.clone());
    let tell =
        move |asked| drop(events.blocking_send(Event::Identity(Box::new(IdentityEvent::Asked(asked)))));
    let failed = tell.clone();
    let started = spawn("identity", move || {
        let client = match by {
            By::Own => asker.api().map(|api| api.stream("identity")),
            By::Bootstrap => of_bootstrap(&asker, bootstrap.as_deref()),
        };
        tell(client.map_or_else(Asked::Failed, |client| answer(&client, &name, &request)));
    });
    if let Err(error) = started {
        // from a thread that may wait: this one handles the event
        let asked = Asked::Failed(format!("cannot start a thread: {error}"));
        std::thread::spawn(move || failed(asked));
    }
}

pub(super) fn take_authorities(server: &ApiServer, wanted: String) {
    let Some(taking) = server.taking() else { return };
    let started = spawn("authorities", move || match taking.take(&wanted) {
        Ok(()) => log::info!("trusts the certificate authorities {wanted} from now on, as the hub announced"),
        Err(why) => log::warn!("cannot take the certificate authorities {wanted} yet: {why}"),
    });
    if let Err(error) = started {
        log::warn!("cannot take the certificate authorities: cannot start a thread: {error}");
    }
}

fn of_bootstrap(server: &ApiServer, bootstrap: Option<&Path>) -> Result<Client, String> {
    let path = bootstrap.ok_or("no --bootstrap-kubeconfig is given")?;
    let api = Api::open(server.options(path.to_owned(), None)).map_err(|error| chain(&error))?;
    Ok(api.stream("identity"))
}

fn answer(client: &Client, name: &str, request: &str) -> Asked {
    let usages = ["digital signature", "client auth"];
    let wanted = Wanted { name, request, signer: NODE_SIGNER, usages };
    match request::ask(client, &wanted) {
        Ok(State::Made) => Asked::Waits(None),
        Ok(State::Waits(_, why)) => Asked::Waits(why),
        Ok(State::Refused(why)) => Asked::Denied(why),
        Ok(State::Signed(pem)) => match issued(&pem) {
            Ok(certificate) => Asked::Issued(Box::new(certificate), pem),
            Err(why) => Asked::Refused(format!("the certificate of request {name} {why}")),
        },
        Err(error @ (NetError::Unauthorized { .. } | NetError::Refused { .. })) => {
            let is_late = error.status().is_some_and(|status| status == 429 || status >= 500);
            if is_late { Asked::Failed(shown(&error)) } else { Asked::Refused(shown(&error)) }
        }
        Err(error) => Asked::Failed(shown(&error)),
    }
}
