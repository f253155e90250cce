//! The life of the pods bound to this node: what should run, what runs, what to do next, what to report.
//!
//! Always holds: nothing is done before the runtime's inventory and the desired set on disk were read; a list that was not read
//! means nothing. Leaves to others: containers, images, files and requests (`event` is the contract), which pods there are.

mod event;

pub use event::{
    Command, ContainerKey, ContainerOrder, ContainerState, DesiredFile, Dns, Exit, Failure, FailureReason,
    HostPort, Image, ImageConfig, ImageOrder, Inventory, Mount, NodeFacts, ObjectKind, ObjectName,
    ObjectRead, Observation, PodAction, PodEvent, PodFound, PodNetwork, PodNews, PodRef, PodRequest,
    PodSandbox, PodUid, PullPolicy, QosClass, Resources, StaticFile, Volume, VolumeFile, VolumeSource,
};
