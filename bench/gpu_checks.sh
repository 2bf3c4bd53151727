#!/usr/bin/env bash
# Measure everything that only a GPU can tell, in two calls of under 9 minutes each. This needs CUDA, torch >= 2.11 and
# Triton. It downloads and installs nothing. Peers that are not installed (transformers, PEFT, TRL) are left out.
#
#   bash bench/gpu_checks.sh [RESULTS]          the tests on the GPU, and what we reach (default: bench/results)
#   bash bench/gpu_checks.sh [RESULTS] peers    the same work by others and by us, in turn
#   DEVICE=cpu SMOKE=1 bash bench/gpu_checks.sh /tmp/rows     test the script itself: tiny sizes, no GPU
#   PARTS="tests decode" bash bench/gpu_checks.sh             run only these parts
#
# Each part has its own time limit; those of a call add up to LIMIT. A part that fails or runs out of time does not stop
# the others; the list of how the parts ended names it, and the exit code is 1. After each part, all rows, logs, that
# list and the cases of a part that did not end (*.partial) are packed into RESULTS/gpu_checks.tar.gz.
set -u
cd "$(dirname "$0")/.."
RESULTS=${1:-bench/results}
CALL=${2:-ours}
case "$CALL" in ours | peers) ;; *) echo "no call named $CALL: ours or peers"; exit 2 ;; esac
DEVICE=${DEVICE:-cuda}
LIMIT=530                        # seconds for all parts of a call together
SMALL=${SMOKE:+tiny}
PYTHON=${PYTHON:-python3}
mkdir -p "$RESULTS"
RESULTS=$(cd "$RESULTS" && pwd)
ENDED="$RESULTS/parts.log"
TEMPORARY=$(mktemp -d)
trap 'rm -rf "$TEMPORARY"' EXIT
export TRITON_INTERPRET=0 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
FAILED=0

# Replace libraries that are imported but never called here by mocks, if they are missing.
cat >"$TEMPORARY/sitecustomize.py" <<'PY'
import importlib.util
import sys
from unittest.mock import MagicMock
for name, inner in (("sqlalchemy", ["pool", "exc", "engine"]), ("openai", ["types"])):
    if importlib.util.find_spec(name) is None:
        sys.modules[name] = MagicMock()
        sys.modules.update({f"{name}.{part}": MagicMock() for part in inner})
PY
export PYTHONPATH="$TEMPORARY:$PWD:${PYTHONPATH:-}"

part() {        # part NAME SECONDS COMMAND...: run it, keep its log, note how it ended, pack what there is
    local name=$1 limit=$2 begun=$SECONDS code
    shift 2
    [ -z "${PARTS:-}" ] || case " $PARTS " in *" $name "*) ;; *) return ;; esac
    [ "$limit" -lt $((LIMIT - SECONDS)) ] || limit=$((LIMIT - SECONDS))
    if [ "$limit" -lt 5 ]; then
        FAILED=$((FAILED + 1))
        printf '%-10s          not started: no time left\n' "$name" >>"$ENDED"
        return
    fi
    echo "=== $name (${*: -8})"
    timeout -k 5 "$limit" "$@" >"$RESULTS/$name.log" 2>&1
    code=$?
    grep -v '^{"bench"' "$RESULTS/$name.log" | tail -n "${LINES_SHOWN:-45}" | cut -c1-220
    [ $code = 0 ] || FAILED=$((FAILED + 1))
    printf '%-10s %4d s   %s\n' "$name" $((SECONDS - begun)) \
        "$([ $code = 0 ] && echo done || echo "ended with $code (124: out of time)")" >>"$ENDED"
    # An archive that begins in the folder that it packs would change it, and tar would fail.
    tar -C "$RESULTS" --exclude gpu_checks.tar.gz -czf "$TEMPORARY/packed" . &&
        mv "$TEMPORARY/packed" "$RESULTS/gpu_checks.tar.gz"
}

bench() {       # bench PART SECONDS MODULE OPTIONS...: run a benchmark; its rows go to $RESULTS
    local name=$1 limit=$2 module=$3
    shift 3
    part "$name" "$limit" "$PYTHON" -m "bench.$module" --device "$DEVICE" --save "$RESULTS" ${SMOKE:+--smoke} "$@"
}

installed() {   # installed LIBRARY: whether it can be imported
    "$PYTHON" -c "import $1" 2>/dev/null || { echo "$1 is not installed"; false; }
}

echo "--- $CALL, $(date -u +%FT%TZ)" >>"$ENDED"
"$PYTHON" - <<'PY'
import torch, triton
print("torch", torch.__version__, "triton", triton.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU")
PY

if [ "$CALL" = ours ]; then
    [ "$DEVICE" = cpu ] ||
        part tests 110 "$PYTHON" -m pytest -m gpu -q -n 0 --maxfail=30 -p no:cacheprovider tests/kernels
    bench products  20 products --models ${SMALL:-1.5b 7b} --repeats 3
    bench decode    50 decode --models ${SMALL:-1.5b} --repeats 3 --profile
    bench decode7b  70 decode --models ${SMALL:-7b} --repeats 3 --profile
    bench top_p     30 decode --models ${SMALL:-1.5b} --batches 32 --top-p 0.9 --repeats 3 --profile
    bench math      50 whole_steps --shapes math --repeats 1 --delays 0 5 15 --profile
    bench knowrl   140 whole_steps --shapes knowrl --repeats 1 --delays 0 15 --profile
    bench varied    35 whole_steps --shapes math --repeats 1 --delays 0 --mean-length 200
    bench logprob   25 logprob --peer none --width 3584 --vocabularies 152064 --dtype bfloat16 --repeats 3
else
    bench logprob_torch 70 logprob --peer torch --width 3584 --vocabularies 152064 --dtype bfloat16 --repeats 3 --growth 4096 16384
    installed transformers &&
        bench sampler 140 sampler --models ${SMALL:-1.5b} --batches 96 --tokens 128 --repeats 2 --peer hf
    installed peft &&
        bench train 120 train_step --models ${SMALL:-1.5b} --prompts 2 --tokens 256 --repeats 3 --peer peft
    installed trl &&
        bench trl 200 end_to_end --model ${SMALL:-1.5b} --tokens 256 --repeats 2 --peer trl
fi

echo; echo "=== how the parts ended ($SECONDS s in all)"
cat "$ENDED"
echo; echo "=== results in $RESULTS"
"$PYTHON" -m bench.report --results "$RESULTS" | grep -v '^{"bench"'
exit $((FAILED > 0))
