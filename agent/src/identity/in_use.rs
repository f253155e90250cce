//! The credential in use: the kubeconfig with the certificate that this node has renewed, or the kubeconfig
//! that the node made when it joined.
//!
//! Always holds: where there is a kubeconfig, a damaged file of the node's own counts as missing; every file
//! that decides is among those whose change is noticed. Leaves to others: when to load again (`net`).

use super::certificate::facts;
use super::files::{AUTHORITIES, CURRENT, KUBECONFIG, in_place_of, opened, replaces};
use super::of_pem;
use crate::net::kubeconfig::{
    self, ClientCertificate, FileRead, Kubeconfig, KubeconfigError, MAX_PEM_BYTES, ReadFile,
};
use kedge_core::identity::{Certificate, Source, source};
use kedge_platform::ReadError;
use std::path::Path;

/// Reads a kubeconfig as [`kubeconfig::load_with`] does, with the node's own credential in `own` if that is
/// newer, or if there is no kubeconfig.
///
/// # Errors
/// Those of the kubeconfig.
pub(crate) fn load(path: &Path, own: Option<&Path>, read: &ReadFile) -> Result<Kubeconfig, KubeconfigError> {
    let Some(own) = own else { return kubeconfig::load_with(path, read) };
    let mut loaded = load_given(path, own, read)?;
    let authorities = own.join(AUTHORITIES);
    loaded.files.push(FileRead::begun(&authorities));
    if let Ok(content) = read(&authorities, MAX_PEM_BYTES)
        && let Some(taken) = in_place_of(&loaded.roots, &content)
    {
        loaded.roots = taken;
    }
    Ok(loaded)
}

/// As [`load`], but with the authorities that the kubeconfig has.
///
/// # Errors
/// Those of the kubeconfig.
pub(super) fn load_given(path: &Path, own: &Path, read: &ReadFile) -> Result<Kubeconfig, KubeconfigError> {
    let generated = own.join(KUBECONFIG);
    let mut loaded = match kubeconfig::load_with(path, read) {
        Err(missing @ KubeconfigError::Read(ReadError::NotFound { .. })) if path != generated => {
            // one that appears later is noticed
            let appears = FileRead::begun(path);
            let mut loaded = kubeconfig::load_with(&generated, read).map_err(|_| missing)?;
            loaded.files.push(appears);
            return Ok(loaded);
        }
        loaded => loaded?,
    };
    if path == generated {
        return Ok(loaded);
    }
    let leaf = loaded.client_certificate.as_ref().and_then(|certificate| certificate.chain.first());
    if let Some(given) = leaf.and_then(|leaf| facts(leaf)) {
        let current = own.join(CURRENT);
        loaded.files.push(FileRead::begun(&current));
        if let Some(renewed) = read(&current, MAX_PEM_BYTES).ok().and_then(|pem| newer(&given, &pem)) {
            loaded.client_certificate = Some(renewed);
        }
    }
    Ok(loaded)
}

/// The node's own certificate, if it is newer than the kubeconfig's.
fn newer(given: &Certificate, content: &[u8]) -> Option<ClientCertificate> {
    let pem = opened(content).ok()?;
    let (chain, key) = of_pem(pem, pem).ok()?;
    let own = Certificate { replaces: replaces(pem), ..facts(chain.first()?)? };
    (source(Some(given), &own) == Source::Own).then_some(ClientCertificate { chain, key })
}
