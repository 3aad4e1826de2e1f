"""The report's sections: what a table asks, what its numbers cannot say, and the commands that make it.

Numbers do not stand here but in the tables, whose own Markdown (`experiments.TABLE.report`) follows.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """One table's section.

    Attributes:
        title: of the section.
        text: what is asked, and how it is measured.
        limits: what to keep in mind, a line each.
        commands: that make the tables.
        csv: the table's name, where the CSVs lie that it is made of.
        report: the module whose ``markdown(csv)`` writes what one CSV says.
        under: the folder of results that is searched; all but the sections' own folders by default.
        together: whether ``markdown`` takes all CSVs at once, and writes one table.
    """

    title: str
    text: str
    limits: tuple[str, ...]
    commands: tuple[str, ...]
    csv: str
    report: str
    under: str = ""
    together: bool = False


SECTIONS = (
    Section(
        "Cosine",
        "Is the gradient right? Within each group of W steps, JAGG's gradient is compared with the exact "
        "one of the same batch. *Middles* are the interpolated steps alone, without the two ends that JAGG "
        "has right by construction; *endpoints only* drops the middle steps. The CSV has every scheme and "
        "variant (eta, W, groups of equal sigma span, shift, bfloat16, training length).",
        (
            "The bundled models have a few million parameters and 16 image tokens. Such a network is much "
            "smoother along its trajectory than FLUX, so a cosine far above the reported one is what was "
            "expected and does not contradict it. What remains is the shape: where along the trajectory "
            "JAGG is least close, for single images and for a batch, and what the middle steps are worth.",
            "The cosine is with the exact gradient of the same batch. It cannot show a bias of the mean: a "
            "middle step's signal is interpolated with a later step's Jacobian, whose latents hold the "
            "very noise that the signal is proportional to.",
        ),
        ("repro run cosine --model tiny-flux", "repro run cosine --model tiny-qwen-image"),
        "cosine",
        "experiments.cosine.report",
    ),
    Section(
        "Convergence",
        "Does the reward follow? A training run for every arm and seed. All arms of a seed share start, "
        "prompts and noise, and differ only in which backwards an update makes (the arm with a window also "
        "in where the noise is). Runs start from the bundled checkpoint with noise on its weights, the "
        "same for all seeds: as they are, the checkpoints know their pictures by heart. Evaluated are "
        "names kept from training, with the trained reward, two scorers that learned from other pictures, "
        "*similarity* to the true picture and *diversity* within a prompt. *Equal* is the outcome of two "
        "one-sided tests within a margin, 10 % of exact's rise, that was set before any run; *lower* and "
        "*higher* take six seeds or more; verdicts but that of JAGG on all groups in the comfortable regime "
        "are corrected for their number (Holm).",
        (
            "The runs are short and exact's reward still rises at their end: nothing here is about "
            "convergence. On models this small JAGG's gradient is almost the exact one, so that its reward "
            "follows is what one should expect.",
            "Different from DanceGRPO's own trainer: one update per rollout (its "
            "FLUX script makes three, each of 4 of a prompt's 12 images on every rank); timesteps go to "
            "the network as they are, not truncated to thousandths; the learning rate warms up over 4 "
            "updates; no moving average of the weights; gradients are clipped at norm 10 as in the early "
            "code, which never binds here (DanceGRPO's own scripts: 1 or 0.01); rewards are of float "
            "pictures, not of 8-bit ones.",
            "Rivals that train a subset of the steps, or a fraction of them, draw it per prompt; DanceGRPO "
            "draws it per sample, which averages more steps in an update. So the subset arms of today's "
            "tables may be handicapped, until they are trained again with a draw per sample.",
            "Training keeps the rollout's velocities, which makes JAGG cheaper than in the paper's layout. "
            "So there are two controls at equal cost: as many exact steps as JAGG costs here, and as many "
            "as it costs there.",
            "Whether the baseline *learned* is tested since 7 December 2026 by one-sided t over its seeds; "
            "until then its mean rise had to be three times their spread, which more seeds cannot mend. "
            "Results of the runs before were known by then, and one baseline that was not counted as "
            "learning is by the new rule: the tables say so where it matters.",
            "Changed after a look at results: the evaluation prompts, raised after a pilot of three seeds; "
            "the control at the cost of the paper's layout, an arm added after the main table; and the "
            "readings of the ablation but own s, which had three seeds at first. Arms, training and margin "
            "stayed.",
            "The runs are of two machines, so their seconds are brought to one pace, at which exact's runs "
            "sampled. Times measured side by side are in the speedup table.",
        ),
        (
            "repro run convergence --model tiny-flux",
            "repro run convergence --model tiny-flux --algorithm flow_grpo_fast",
            "repro run convergence --model tiny-qwen-image",
            "repro run convergence --model tiny-qwen-image --algorithm flow_grpo_fast",
        ),
        "convergence",
        "experiments.convergence.report",
    ),
    Section(
        "Ablation",
        "What is interpolation worth? The paper's ablation makes the same two backwards without "
        "interpolating, and reports that this is worse. Its wording allows several readings: each end "
        "keeps its own signal only; each gets the whole group's; middles are split half and half; middles "
        "go to the nearest end. The control that matters as much is exact gradients on fewer steps, at the "
        "same cost. The runs are convergence's; only what is missing is trained. Two contrasts are primary "
        "(bold): JAGG minus exact, and exact on fewer steps minus JAGG, in the comfortable regime at the "
        "rate at which its arms were trained. The others are exploratory, and their verdicts corrected for "
        "their number (Holm). Six seeds or more decide *lower* and *higher*, three or more *equal*.",
        (
            "The primary contrasts were declared on 7 December 2026, after the runs of November were made "
            "and looked at. Of later runs they are declared beforehand.",
            "Subset arms draw their steps per prompt, which may handicap them, as said under convergence.",
            "Where the exact baseline was not seen to learn, arms cannot be told apart, whatever it says.",
        ),
        (
            "repro run ablation --model tiny-flux",
            "repro run ablation --model tiny-flux --algorithm flow_grpo_fast",
            "repro run ablation --model tiny-qwen-image",
            "repro run ablation --model tiny-qwen-image --algorithm flow_grpo_fast",
        ),
        "ablation",
        "experiments.ablation.report",
    ),
    Section(
        "Speedup",
        "How much time does it save? What is timed are the Trainer's own steps. Schemes take turns within "
        "each round, in one process and in an order drawn anew each round, with everything else equal; "
        "*exact again* is exact under another name, and what it seems to save is the clock's error. The "
        "cost model's prediction uses one forward and one backward timed on their own. *In forwards* every "
        "pass of an update is divided by forwards timed right beside it, which a machine's changes of speed "
        "hardly move.",
        (
            "What is reported was measured on FLUX and Qwen-Image themselves, on GPUs. The share of a step "
            "that is not the update differs with model and machine, so compare the update first.",
            "The machine was shared while these were measured, so seconds, and with them the whole step, "
            "have wide intervals. The update in forwards is the measurement to look at.",
        ),
        ("repro run speedup --model tiny-flux", "repro run speedup --model tiny-qwen-image"),
        "speedup",
        "experiments.speedup.report",
    ),
    Section(
        "All-gathers",
        "Is it one all-gather? Under FSDP every backward gathers each block's weights anew. The paper says "
        "that the joint backward does so once per module. Counted on FLUX's architecture; the counts "
        "depend on the graph, not on its size or the hardware.",
        ("Collectives of what is in no block, such as embeddings, are not in these counts.",),
        ("repro run allgather",),
        "allgather",
        "experiments.allgather.report",
    ),
    Section(
        "Benchmarks",
        "What does the suite itself cost? Its update against a plain loop over samples and steps, as "
        "DanceGRPO's trainer has it.",
        ("Most of the difference is batching of a 16-token model, which a large one gains less from.",),
        ("python -m pytest benchmarks --results results/benchmarks",),
        "benchmarks",
        "experiments.benchmarks.report",
    ),
    Section(
        "Sweep",
        "Eta, learning rate and start of the training runs are ours; the early code samples with eta 0.3. "
        "This sweep of the exact baseline shows what stands beside them, learning rates in multiples of the "
        "recipe's.",
        (
            "Most cells have one seed: the sweep finds a rate and shows no more. Eta 0.7 came from trials "
            "that are not kept; nothing here speaks for it over 0.3, at which tiny-flux learns, too (in "
            "the table of convergence).",
        ),
        (
            "repro run convergence --model tiny-flux --plan sweep",
            "repro run convergence --model tiny-qwen-image --plan sweep/noise-0.5",
        ),
        "convergence",
        "experiments.convergence.sweep",
        "sweep",
        together=True,
    ),
)
