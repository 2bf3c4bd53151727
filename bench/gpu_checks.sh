#!/usr/bin/env bash
# Measure everything that only a GPU can tell, the most valuable first, in two calls of under 10 minutes each. This needs
# CUDA, torch >= 2.11 and Triton. It downloads and installs nothing. Peers that are not installed are left out.
#
#   bash bench/gpu_checks.sh [RESULTS]          the tests on the GPU, and what we reach (default: bench/results)
#   bash bench/gpu_checks.sh [RESULTS] peers    the same work by others and by us, in turn
#   DEVICE=cpu SMOKE=1 bash bench/gpu_checks.sh /tmp/rows     test the script itself: tiny sizes, no GPU
#   PARTS="tests decode" bash bench/gpu_checks.sh             run only these parts
#
# Where kernels cannot be compiled (gcc, Python.h, Triton), nothing is measured. Each part has its own time limit, and
# all parts of a call together have LIMIT. A part that fails or runs out of time does not stop the others; the exit code
# is then 1. RESULTS receives four files, and holds all that was measured whenever the script is killed:
#
#   gpu_rows.jsonl      a row per case, for bench.report, written as soon as it is measured
#   parts.log           how each part ended
#   table.md            what the rows say (bench/report.py), made after each part
#   gpu_checks.tar.gz   all of these and the log of each part, replaced in one piece after each part
set -u
cd "$(dirname "$0")/.."
RESULTS=${1:-bench/results}
CALL=${2:-ours}
case "$CALL" in ours | peers) ;; *) echo "no call named $CALL: ours or peers"; exit 2 ;; esac
DEVICE=${DEVICE:-cuda}
LIMIT=560                        # seconds for all parts of a call together
SMALL=${SMOKE:+tiny}
PYTHON=${PYTHON:-python3}
mkdir -p "$RESULTS"
RESULTS=$(cd "$RESULTS" && pwd)
ROWS="$RESULTS/gpu_rows.jsonl"
WORK=$(mktemp -d)
LOGS="$WORK/logs"
mkdir "$LOGS"
touch "$ROWS"
export TRITON_INTERPRET=0 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1
# Segments that grow need calls that some virtual machines lack.
GROW="import torch; [torch.ones(size << 30, dtype=torch.uint8, device='cuda') for size in (1, 2)]"
if [ "$DEVICE" != cpu ] && PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "$PYTHON" -c "$GROW" 2>/dev/null; then
    export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
fi
FAILED=0
RUNNING=

# Replace a library that is imported but never called here by a mock, if it is missing.
cat >"$WORK/sitecustomize.py" <<'PY'
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock
if importlib.util.find_spec("openai") is None:
    sys.modules["openai"] = MagicMock(__spec__=ModuleSpec("openai", loader=None))    # find_spec asks for it
PY
export PYTHONPATH="$WORK:$PWD:${PYTHONPATH:-}"

pack() {        # make the table, and replace the archive
    "$PYTHON" -m bench.report --results "$ROWS" >"$RESULTS/table.md" 2>"$LOGS/report.log"
    cp "$RESULTS/gpu_rows.jsonl" "$RESULTS/parts.log" "$RESULTS/table.md" "$LOGS" 2>/dev/null
    tar -C "$LOGS" -czf "$RESULTS/.packed" . && mv "$RESULTS/.packed" "$RESULTS/gpu_checks.tar.gz"
}

stop() {        # a signal: end the part that runs, keep what there is
    trap '' TERM INT HUP
    [ -z "$RUNNING" ] || kill "$RUNNING" 2>/dev/null
    echo "stopped    $SECONDS by a signal" >>"$RESULTS/parts.log"
    pack
    rm -rf "$WORK"
    exit 143
}
trap stop TERM INT HUP
trap 'rm -rf "$WORK"' EXIT

part() {        # part NAME SECONDS COMMAND...: run it, keep its log, note how it ended, pack what there is
    local name=$1 limit=$2 begun=$SECONDS code
    shift 2
    [ -z "${PARTS:-}" ] || case " $PARTS " in *" $name "*) ;; *) return ;; esac
    [ "$limit" -lt $((LIMIT - SECONDS)) ] || limit=$((LIMIT - SECONDS))
    if [ "$limit" -lt 5 ]; then
        FAILED=$((FAILED + 1))
        echo "$name    0 not started: no time left" >>"$RESULTS/parts.log"
        return
    fi
    echo "=== $name (${*: -8})"
    # In the script's own process group, so that killing the group ends the part, too. The first signal makes pytest and
    # Python say where they are; the part ends 15 seconds later at the latest.
    timeout --foreground -s INT -k 15 "$limit" "$@" >"$LOGS/$name.log" 2>&1 &
    RUNNING=$!
    wait "$RUNNING"
    code=$?
    RUNNING=
    grep -v '^{"bench"' "$LOGS/$name.log" | tail -n "${LINES_SHOWN:-45}" | cut -c1-220
    [ $code = 0 ] || FAILED=$((FAILED + 1))
    printf '%-10s %4d %s\n' "$name" $((SECONDS - begun)) \
        "$([ $code = 0 ] && echo done || echo "ended with $code (124 or 137: out of time)")" >>"$RESULTS/parts.log"
    pack
}

bench() {       # bench PART SECONDS MODULE OPTIONS...: run a benchmark; its rows go to $ROWS
    local name=$1 limit=$2 module=$3
    shift 3
    part "$name" "$limit" "$PYTHON" -m "bench.$module" --device "$DEVICE" --save "$ROWS" ${SMOKE:+--smoke} "$@"
}

installed() {   # installed LIBRARY: whether it can be imported
    "$PYTHON" -c "import $1" 2>/dev/null || { echo "$1 is not installed"; false; }
}

echo "call          0 $CALL, $(date -u +%FT%TZ)" >>"$RESULTS/parts.log"

# Without a compiler everything runs with torch's own operations, and rows of speed mislead. (This compiles a kernel.)
READY="from grpo.engine.device.kernel_choice import describe
found = describe('cuda')
print('kernels    ', found)
raise SystemExit(not found.startswith('fused'))"
if [ "$DEVICE" != cpu ] && ! "$PYTHON" -c "$READY" >"$LOGS/ready.log" 2>&1; then
    cat "$LOGS/ready.log" | tee -a "$RESULTS/parts.log"
    echo "stopped    $SECONDS before anything was measured: kernels cannot be compiled here" | tee -a "$RESULTS/parts.log"
    pack
    exit 1
fi
[ "$DEVICE" = cpu ] || cat "$LOGS/ready.log"

if [ "$CALL" = ours ]; then
    bench decode7b 110 decode --models ${SMALL:-7b} --batches 288 96 24 1 --repeats 3 --profile
    bench knowrl   200 whole_steps --shapes knowrl --repeats 1 --delays 0 --profile
    [ "$DEVICE" = cpu ] ||
        part tests 110 "$PYTHON" -m pytest -m gpu -q -rA $(installed xdist >"$LOGS/xdist.log" && printf '%s' '-n 6') \
            --maxfail=30 -p no:cacheprovider tests/kernels
    bench decode    50 decode --models ${SMALL:-1.5b} --repeats 3 --profile
    bench top_p     45 decode --models ${SMALL:-1.5b} --batches 32 --top-p 0.9 --repeats 3 --profile
    bench varied    50 whole_steps --shapes math --repeats 1 --delays 0 --mean-length 200
    bench math      60 whole_steps --shapes math --repeats 1 --delays 0 5 --profile
    bench logprob   25 logprob --peer none --width 3584 --vocabularies 152064 --dtype bfloat16 --repeats 3
else
    installed trl &&
        bench trl 250 whole_steps --shapes trl_gpu --repeats 2 --peer trl
    installed transformers &&
        bench sampler 110 sampler --models ${SMALL:-1.5b} --batches 96 --tokens 128 --repeats 2 --peer hf
    installed peft &&
        bench train 150 train_step --models ${SMALL:-1.5b} --prompts 2 --tokens 256 --repeats 3 --peer peft
    bench logprob_torch 50 logprob --peer torch --width 3584 --vocabularies 152064 --dtype bfloat16 --repeats 3
fi

echo; cat "$RESULTS/parts.log" "$RESULTS/table.md"
exit $((FAILED > 0))
