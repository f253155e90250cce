# Completions of kedge for bash. Made by .ci/reference; edit the tables of flags instead.
_kedge() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} given="" choices="" at skip=""
    for ((at = 1; at < COMP_CWORD; at++)); do
        if [ -n "$skip" ]; then skip=''; continue; fi
        case ${COMP_WORDS[at]} in
        --bootstrap-kubeconfig|--ca-cert-hash|--cgroup-root|--config|--config-dir|--container|--credentials|--crun|--dynamic-config-dir|--environment-file|--healthz-bind-address|--healthz-port|--hostname-override|--init-config-dir|--key|--kubeconfig|--limit-bytes|--name|--node-labels|--node-name|--node-status-update-frequency|--output|--preloaded-images|--provider-id|--register-with-taints|--root-dir|--run-dir|--since|--since-time|--tail|--timeout|--token-file|--v) skip=1 ;;
        -*) ;;
        *) given="$given ${COMP_WORDS[at]}" ;;
        esac
    done
    case $before in
    --output) mapfile -t COMPREPLY < <(compgen -W "text json" -- "$word"); return ;;
    --bootstrap-kubeconfig|--config|--config-dir|--credentials|--crun|--dynamic-config-dir|--environment-file|--init-config-dir|--kubeconfig|--preloaded-images|--root-dir|--run-dir|--token-file) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
    esac
    case $given in
    " agent"*) choices="--kubeconfig --bootstrap-kubeconfig --hostname-override --node-labels --register-node --register-with-taints --provider-id --config --init-config-dir --config-dir --dynamic-config --dynamic-config-dir --node-status-update-frequency --healthz-port --healthz-bind-address --v --crun --cgroup-root --preloaded-images --root-dir --run-dir --help" ;;
    " join https"*) choices="--token-file --ca-cert-hash --unsafe-skip-ca-verification --node-name --timeout --bootstrap-kubeconfig --environment-file --root-dir --run-dir --kubeconfig --hostname-override --node-labels --register-node --register-with-taints --provider-id --config --init-config-dir --config-dir --dynamic-config --dynamic-config-dir --node-status-update-frequency --healthz-port --healthz-bind-address --v --crun --cgroup-root --preloaded-images --help" ;;
    " join") choices="https --help" ;;
    " status"*) choices="--root-dir --run-dir --output --help" ;;
    " doctor"*) choices="--environment-file --root-dir --run-dir --output --kubeconfig --bootstrap-kubeconfig --hostname-override --node-labels --register-node --register-with-taints --provider-id --config --init-config-dir --config-dir --dynamic-config --dynamic-config-dir --node-status-update-frequency --healthz-port --healthz-bind-address --v --crun --cgroup-root --preloaded-images --help" ;;
    " config show"*) choices="--key --output --environment-file --root-dir --run-dir --kubeconfig --bootstrap-kubeconfig --hostname-override --node-labels --register-node --register-with-taints --provider-id --config --init-config-dir --config-dir --dynamic-config --dynamic-config-dir --node-status-update-frequency --healthz-port --healthz-bind-address --v --crun --cgroup-root --preloaded-images --help" ;;
    " config status"*) choices="--key --output --environment-file --root-dir --run-dir --kubeconfig --bootstrap-kubeconfig --hostname-override --node-labels --register-node --register-with-taints --provider-id --config --init-config-dir --config-dir --dynamic-config --dynamic-config-dir --node-status-update-frequency --healthz-port --healthz-bind-address --v --crun --cgroup-root --preloaded-images --help" ;;
    " config history"*) choices="--key --output --environment-file --root-dir --run-dir --kubeconfig --bootstrap-kubeconfig --hostname-override --node-labels --register-node --register-with-taints --provider-id --config --init-config-dir --config-dir --dynamic-config --dynamic-config-dir --node-status-update-frequency --healthz-port --healthz-bind-address --v --crun --cgroup-root --preloaded-images --help" ;;
    " config check"*) choices="--key --output --environment-file --root-dir --run-dir --kubeconfig --bootstrap-kubeconfig --hostname-override --node-labels --register-node --register-with-taints --provider-id --config --init-config-dir --config-dir --dynamic-config --dynamic-config-dir --node-status-update-frequency --healthz-port --healthz-bind-address --v --crun --cgroup-root --preloaded-images --help" ;;
    " config forgive"*) choices="--key --output --environment-file --root-dir --run-dir --kubeconfig --bootstrap-kubeconfig --hostname-override --node-labels --register-node --register-with-taints --provider-id --config --init-config-dir --config-dir --dynamic-config --dynamic-config-dir --node-status-update-frequency --healthz-port --healthz-bind-address --v --crun --cgroup-root --preloaded-images --help" ;;
    " config reset"*) choices="--key --output --environment-file --root-dir --run-dir --kubeconfig --bootstrap-kubeconfig --hostname-override --node-labels --register-node --register-with-taints --provider-id --config --init-config-dir --config-dir --dynamic-config --dynamic-config-dir --node-status-update-frequency --healthz-port --healthz-bind-address --v --crun --cgroup-root --preloaded-images --help" ;;
    " config") choices="show status history check forgive reset --help" ;;
    " pods release"*) choices="--root-dir --run-dir --output --help" ;;
    " pods") choices="release --root-dir --run-dir --output --help" ;;
    " logs"*) choices="--container --follow --previous --tail --since --since-time --limit-bytes --timestamps --environment-file --root-dir --run-dir --kubeconfig --bootstrap-kubeconfig --hostname-override --node-labels --register-node --register-with-taints --provider-id --config --init-config-dir --config-dir --dynamic-config --dynamic-config-dir --node-status-update-frequency --healthz-port --healthz-bind-address --v --crun --cgroup-root --preloaded-images --help" ;;
    " exec"*) choices="--container --stdin --tty --environment-file --root-dir --run-dir --kubeconfig --bootstrap-kubeconfig --hostname-override --node-labels --register-node --register-with-taints --provider-id --config --init-config-dir --config-dir --dynamic-config --dynamic-config-dir --node-status-update-frequency --healthz-port --healthz-bind-address --v --crun --cgroup-root --preloaded-images --help" ;;
    " attach"*) choices="--container --stdin --tty --environment-file --root-dir --run-dir --kubeconfig --bootstrap-kubeconfig --hostname-override --node-labels --register-node --register-with-taints --provider-id --config --init-config-dir --config-dir --dynamic-config --dynamic-config-dir --node-status-update-frequency --healthz-port --healthz-bind-address --v --crun --cgroup-root --preloaded-images --help" ;;
    " images ls"*) choices="--credentials --name --output --environment-file --root-dir --run-dir --kubeconfig --bootstrap-kubeconfig --hostname-override --node-labels --register-node --register-with-taints --provider-id --config --init-config-dir --config-dir --dynamic-config --dynamic-config-dir --node-status-update-frequency --healthz-port --healthz-bind-address --v --crun --cgroup-root --preloaded-images --help" ;;
    " images pull"*) choices="--credentials --name --output --environment-file --root-dir --run-dir --kubeconfig --bootstrap-kubeconfig --hostname-override --node-labels --register-node --register-with-taints --provider-id --config --init-config-dir --config-dir --dynamic-config --dynamic-config-dir --node-status-update-frequency --healthz-port --healthz-bind-address --v --crun --cgroup-root --preloaded-images --help" ;;
    " images import"*) choices="--credentials --name --output --environment-file --root-dir --run-dir --kubeconfig --bootstrap-kubeconfig --hostname-override --node-labels --register-node --register-with-taints --provider-id --config --init-config-dir --config-dir --dynamic-config --dynamic-config-dir --node-status-update-frequency --healthz-port --healthz-bind-address --v --crun --cgroup-root --preloaded-images --help" ;;
    " images rm"*) choices="--credentials --name --output --environment-file --root-dir --run-dir --kubeconfig --bootstrap-kubeconfig --hostname-override --node-labels --register-node --register-with-taints --provider-id --config --init-config-dir --config-dir --dynamic-config --dynamic-config-dir --node-status-update-frequency --healthz-port --healthz-bind-address --v --crun --cgroup-root --preloaded-images --help" ;;
    " images prune"*) choices="--credentials --name --output --environment-file --root-dir --run-dir --kubeconfig --bootstrap-kubeconfig --hostname-override --node-labels --register-node --register-with-taints --provider-id --config --init-config-dir --config-dir --dynamic-config --dynamic-config-dir --node-status-update-frequency --healthz-port --healthz-bind-address --v --crun --cgroup-root --preloaded-images --help" ;;
    " images") choices="ls pull import rm prune --help" ;;
    " slot status"*) choices="--reboot --allow-older --again --root-dir --run-dir --help" ;;
    " slot update"*) choices="--reboot --allow-older --again --root-dir --run-dir --help" ;;
    " slot keys"*) choices="--reboot --allow-older --again --root-dir --run-dir --help" ;;
    " slot") choices="status update keys --help" ;;
    " system status"*) choices="--root-dir --run-dir --help" ;;
    " system") choices="status --help" ;;
    " version"*) choices="--output --help" ;;
    "") choices="agent join status doctor config pods logs exec attach images slot system version help --help --version" ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$word")
}
complete -o bashdefault -o default -F _kedge kedge
