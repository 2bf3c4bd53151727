#!/usr/bin/env bash
# Measure everything that only a GPU can tell, in one call of under 9 minutes. This needs CUDA, torch >= 2.11, Triton and
# transformers. It downloads and installs nothing. Peers that are not installed (transformers, PEFT) are left out.
#
#   bash bench/gpu_checks.sh [RESULTS]        write rows and logs to RESULTS (default bench/results); end with a table
#   DEVICE=cpu SMOKE=1 bash bench/gpu_checks.sh /tmp/rows     test the script itself: tiny sizes, no GPU
#   PARTS="tests decode" bash bench/gpu_checks.sh             run only these parts
#
# Each part has its own time limit. A part that fails or runs out of time does not stop the others; the list before the
# table names it, and the exit code is 1.
set -u
cd "$(dirname "$0")/.."
RESULTS=${1:-bench/results}
DEVICE=${DEVICE:-cuda}
PARTS=${PARTS:-tests decode decode7b top_p math knowrl logprob sampler train varied}
LIMIT=${LIMIT:-530}              # seconds for all parts together; no part may run longer than what is left
SMALL=${SMOKE:+tiny}
PYTHON=${PYTHON:-python3}
mkdir -p "$RESULTS"
LOGS=$(mktemp -d)
export TRITON_INTERPRET=0 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
SUMMARY=()
FAILED=0
[ "$DEVICE" = cuda ] || PARTS=${PARTS/tests/}          # the tests need a GPU

# Replace libraries that are imported but never called here by mocks, if they are missing.
cat >"$LOGS/sitecustomize.py" <<'PY'
import importlib.util
import sys
from unittest.mock import MagicMock
for name, inner in (("sqlalchemy", ["pool", "exc", "engine"]), ("openai", ["types"])):
    if importlib.util.find_spec(name) is None:
        sys.modules[name] = MagicMock()
        sys.modules.update({f"{name}.{part}": MagicMock() for part in inner})
PY
export PYTHONPATH="$LOGS:$PWD:${PYTHONPATH:-}"

part() {        # part NAME SECONDS COMMAND...: run it, keep its log, note how it ended
    local name=$1 limit=$2 begun=$SECONDS code
    shift 2
    case " $PARTS " in *" $name "*) ;; *) return ;; esac
    [ "$limit" -lt $((LIMIT - SECONDS)) ] || limit=$((LIMIT - SECONDS))
    if [ "$limit" -lt 10 ]; then FAILED=$((FAILED + 1)); SUMMARY+=("$(printf '%-10s          not started: no time left' "$name")"); return; fi
    echo "=== $name (${*: -8})"
    timeout -k 5 "$limit" "$@" >"$LOGS/$name.log" 2>&1
    code=$?
    grep -v '^{"bench"' "$LOGS/$name.log" | tail -n "${LINES_SHOWN:-45}" | cut -c1-220
    [ $code = 0 ] || FAILED=$((FAILED + 1))
    SUMMARY+=("$(printf '%-10s %4d s   %s' "$name" $((SECONDS - begun)) "$([ $code = 0 ] && echo done || echo "ended with $code (124: out of time)")")")
}

bench() {       # bench PART SECONDS MODULE OPTIONS...: run a benchmark; its rows go to $RESULTS
    local name=$1 limit=$2 module=$3
    shift 3
    part "$name" "$limit" "$PYTHON" -c "
import sys
from pathlib import Path
from bench import timing, $module
timing.RESULTS = Path('$RESULTS').resolve()
$module.main(sys.argv[1:])" --device "$DEVICE" --save ${SMOKE:+--smoke} "$@"
}

hf=none; "$PYTHON" -c 'import transformers' 2>/dev/null && hf=hf
peft=none; "$PYTHON" -c 'import peft' 2>/dev/null && peft=peft
"$PYTHON" - <<'PY'
import torch, triton
print("torch", torch.__version__, "triton", triton.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU")
PY

part  tests    150 "$PYTHON" -m pytest -m gpu -q --maxfail=30 -p no:cacheprovider tests/kernels
bench decode    70 decode --models ${SMALL:-1.5b} --repeats 3 --profile
bench decode7b  90 decode --models ${SMALL:-7b} --repeats 3 --profile
bench top_p     40 decode --models ${SMALL:-1.5b} --batches 32 --top-p 0.9 --repeats 3
bench math      60 whole_steps --shapes math --repeats 1 --delays 0 5 15 --profile
bench knowrl   200 whole_steps --shapes knowrl --repeats 1 --delays 0 5 15 --profile
bench logprob   50 logprob --peer torch --width 3584 --vocabularies 152064 --dtype bfloat16 --repeats 3 --growth 4096 16384
bench sampler   80 sampler --models ${SMALL:-1.5b} --batches 96 --tokens 128 --repeats 2 --peer $hf
bench train     70 train_step --models ${SMALL:-1.5b} --prompts 2 --tokens 256 --repeats 3 --peer $peft
bench varied    40 whole_steps --shapes math --repeats 1 --delays 0 --mean-length 200

echo; echo "=== how the parts ended ($SECONDS s in all)"
printf '%s\n' "${SUMMARY[@]}"
echo; echo "=== results in $RESULTS"
"$PYTHON" -m bench.report --results "$RESULTS" | grep -v '^{"bench"'
cp "$LOGS"/*.log "$RESULTS"/ 2>/dev/null
rm -rf "$LOGS"
exit $((FAILED > 0))
