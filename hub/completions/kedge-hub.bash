# Completions of kedge-hub for bash. Made by .ci/reference; edit the tables of flags instead.
_kedge_hub() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} given="" choices="" at skip=""
    for ((at = 1; at < COMP_CWORD; at++)); do
        if [ -n "$skip" ]; then skip=''; continue; fi
        case ${COMP_WORDS[at]} in
        --advertise|--config-rollouts|--data-dir|--description|--expired-node-may-renew|--keep|--kubeconfig|--leave|--life|--listen|--log-level|--names|--namespace|--node|--node-certificate-life|--node-monitor-grace-period|--only|--out|--output|--p12|--reason|--role|--rollout-pre-pull|--server|--tls-san|--ttl|--user|--uses) skip=1 ;;
        -*) ;;
        *) given="$given ${COMP_WORDS[at]}" ;;
        esac
    done
    case $before in
    --config-rollouts) mapfile -t COMPREPLY < <(compgen -W "on off" -- "$word"); return ;;
    --log-level) mapfile -t COMPREPLY < <(compgen -W "error warn info debug" -- "$word"); return ;;
    --output) mapfile -t COMPREPLY < <(compgen -W "table json" -- "$word"); return ;;
    --rollout-pre-pull) mapfile -t COMPREPLY < <(compgen -W "on off" -- "$word"); return ;;
    --data-dir|--kubeconfig|--names|--out|--p12) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
    esac
    case $given in
    " serve"*) choices="--listen --advertise --tls-san --node-monitor-grace-period --node-certificate-life --expired-node-may-renew --rollout-pre-pull --config-rollouts --fenced --log-level --data-dir --help" ;;
    " token create"*) choices="--advertise --node --names --any-node --ttl --uses --approve --description --data-dir --output --help" ;;
    " token list"*) choices="--data-dir --output --help" ;;
    " token revoke"*) choices="--data-dir --output --help" ;;
    " token") choices="create list revoke --help" ;;
    " node-kubeconfig"*) choices="--advertise --life --out --data-dir --help" ;;
    " node-bootstrap"*) choices="--advertise --ttl --uses --description --out --data-dir --help" ;;
    " node list"*) choices="--data-dir --output --help" ;;
    " node revoke"*) choices="--reason --force --data-dir --output --help" ;;
    " node readmit"*) choices="--same-credentials --data-dir --output --help" ;;
    " node rotate"*) choices="--data-dir --output --help" ;;
    " node decommission"*) choices="--wipe --data-dir --output --help" ;;
    " node accept"*) choices="--all --data-dir --output --help" ;;
    " node") choices="list revoke readmit rotate decommission accept --help" ;;
    " denied list"*) choices="--data-dir --output --help" ;;
    " denied lift"*) choices="--data-dir --output --help" ;;
    " denied") choices="list lift --help" ;;
    " user create"*) choices="--role --server --life --out --p12 --namespace --data-dir --help" ;;
    " user list"*) choices="--data-dir --output --help" ;;
    " user revoke"*) choices="--reason --data-dir --help" ;;
    " user") choices="create list revoke --help" ;;
    " kubeconfig"*) choices="--user --server --life --out --data-dir --help" ;;
    " rollout"*) choices="--namespace --watch --data-dir --output --help" ;;
    " controllers"*) choices="--kubeconfig --only --log-level --help" ;;
    " ca new"*) choices="--data-dir --output --help" ;;
    " ca status"*) choices="--data-dir --output --help" ;;
    " ca switch"*) choices="--leave --back --data-dir --output --help" ;;
    " ca retire"*) choices="--leave --data-dir --output --help" ;;
    " ca") choices="new status switch retire --help" ;;
    " backup"*) choices="--keep --data-dir --help" ;;
    " restore"*) choices="--empty --forget-revocations --data-dir --help" ;;
    " completions"*) choices="--help" ;;
    "") choices="serve token node-kubeconfig node-bootstrap node denied user kubeconfig rollout controllers ca backup restore completions help --help --version" ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$word")
}
complete -o bashdefault -o default -F _kedge_hub kedge-hub
