"""What a hub's run folder says of the labels."""

from tdcd.config.losses import named_loss
from tdcd.runtime.protocol.job import Job
from tdcd.runtime.protocol.sample_index import SampleIndex
from tdcd.tables.labels import LabelEncoding


def label_encoding_of(sample_index: SampleIndex, job: Job) -> LabelEncoding:
    """How labels become numbers; in a silo without, only how many outputs blocks have."""
    meaning = sample_index.meaning
    if meaning is not None:
        return LabelEncoding(meaning.task, meaning.classes, meaning.label_mean, meaning.label_scale)
    outputs = sample_index.outputs(job.config)
    return LabelEncoding(named_loss(job.config.model, outputs.loss).tasks[0], num_outputs=outputs.count)


def labels_in_words(sample_index: SampleIndex, job: Job) -> str:
    """What the labels were taken for, or where they are."""
    if sample_index.meaning is not None:
        return sample_index.meaning.in_words
    return f"only silo '{job.config.federation.labels}' has them"
