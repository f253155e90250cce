//! The cost of a decision by roles: reviews of a caller's right, while others have few or many bindings.
//!
//! Always holds: a real hub over real TLS; the counts are those of the whole request, so that even a small
//! growth with the bindings of others shows.

use kedge_rig::client::Connection;
use kedge_rig::error::RigError;
use kedge_rig::table::{Figure, Goal};
use serde_json::{Value, json};

use crate::cost;
use crate::push::JSON;
use crate::setup::{Setup, io};

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
/// Bindings of others in each stage.
const SIZES: [usize; 2] = [10, 1000];
/// Reviews before counting, and counted reviews.
const SETTLE: usize = 20;
const COUNTED: usize = 300;
/// A cost is flat if it is at most this much higher among the most bindings.
const FLAT: f64 = 1.05;

/// See the module.
pub(crate) fn measure() -> Result<Vec<Figure>, RigError> {
    let mut figures = Vec::new();
    let mut first = None;
    for size in SIZES {
        let counted = reviews(size)?;
        let instructions = counted.instructions / COUNTED as f64;
        let how = format!("callgrind over {COUNTED} reviews by POST, all that the hub does meanwhile");
        let name = format!("rights: instructions per review, {size} bindings of others");
        figures.push(Figure::new(&name, instructions, "", how.clone()));
        let name = format!("rights: allocations per review, {size} bindings of others");
        figures.push(Figure::new(&name, counted.allocations / COUNTED as f64, "", how));
        if let Some(few) = first {
            let name = format!("rights: the same instructions, times those with {}", SIZES[0]);
            let figure = Figure::new(&name, instructions / few, "", format!("{size} bindings"));
            figures.push(figure.with_goal(Goal::AtMost(FLAT)));
        }
        first = first.or(Some(instructions));
    }
    Ok(figures)
}

fn reviews(size: usize) -> Result<cost::Counted, RigError> {
    let setup = Setup::open_counted("bench-rights", &[])?;
    let pid = setup.hub.pid().ok_or_else(|| io("find the hub's process")(std::io::Error::other("gone")))?;
    let dump = setup.scratch.path().join(format!("callgrind.{pid}.1"));
    let mut hub = setup.connect()?;
    bind(&mut hub, "jane", "jane")?;
    for number in 0..size {
        bind(&mut hub, &format!("b{number}"), &format!("user-{number}"))?;
    }
    review(&mut hub, SETTLE)?;
    cost::control(pid, cost::BEGIN)?;
    review(&mut hub, COUNTED)?;
    cost::control(pid, "--dump")?;
    cost::read(&dump)
}

fn bind(hub: &mut Connection, name: &str, user: &str) -> Result<Value, RigError> {
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"});
    let subjects = json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]);
    let binding = json!({"metadata": {"name": name}, "roleRef": role, "subjects": subjects});
    hub.accepted("POST", BINDINGS, JSON, &binding).map_err(io("make a binding"))
}

fn review(hub: &mut Connection, count: usize) -> Result<(), RigError> {
    let asked = json!({"namespace": "default", "verb": "create", "resource": "pods"});
    let body = json!({"spec": {"user": "jane", "resourceAttributes": asked}});
    for _ in 0..count {
        let answer = hub.accepted("POST", REVIEWS, JSON, &body).map_err(io("ask for a review"))?;
        if answer["status"]["allowed"] != true {
            return Err(io("ask for a review")(std::io::Error::other(answer.to_string())));
        }
    }
    Ok(())
}
