//! Names of users, groups and signers: upstream's, so that certificates and tools of a Kubernetes cluster
//! work unchanged.

/// Members may do everything.
pub const ADMIN_GROUP: &str = "system:masters";
/// The group of every node.
pub const NODE_GROUP: &str = "system:nodes";
/// A node's user is this prefix and the name of its Node.
pub const NODE_USER_PREFIX: &str = "system:node:";
/// Every caller with a credential is in this group.
pub const AUTHENTICATED_GROUP: &str = "system:authenticated";
/// The group of every caller with a bootstrap token.
pub const BOOTSTRAP_GROUP: &str = "system:bootstrappers";
/// The user of a bootstrap token is this prefix and the token's id.
pub const BOOTSTRAP_USER_PREFIX: &str = "system:bootstrap:";
/// Signs client certificates for anybody but administrators.
pub const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// Signs client certificates for nodes.
pub const NODE_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Signs serving certificates of kubelets; our hub has no such signer.
pub const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";
