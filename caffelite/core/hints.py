"""caffelite's names for those of Keras and PyTorch. Imported only if a name is missing in caffelite."""

from __future__ import annotations

_LAYERS = "the layers themselves, cl.Linear, cl.ReLU, cl.Conv2d …"
_OPTIMIZERS = "cl.SGD, cl.Adam, cl.AdamW …"
_LOSSES = "cl.SoftmaxLoss, cl.SigmoidLoss, cl.MSELoss …"

NAMES = {
    # Modules
    "nn": _LAYERS,
    "keras": "cl.Model with fit, predict and evaluate",
    "layers": _LAYERS,
    "F": "functions and methods of Tensors, cl.concatenate, x.relu(), x.softmax() …",
    "optim": _OPTIMIZERS,
    "losses": _LOSSES,
    "utils": "cl.DataGenerator for batches",
    "lr_scheduler": "cl.schedules, as lr=cl.schedules.cosine(0.1, steps=1000)",
    # Models and data
    "Sequential": "cl.Model([…])",
    "Module": "cl.Model, whose subclasses write call; or cl.Function",
    "Layer": "cl.Function; or cl.Model, whose subclasses write call",
    "Input": "nothing: cl.Model([cl.Linear(64, 10), …]) has the sizes in its layers",
    "tensor": "cl.Tensor(…)",
    "Parameter": "cl.Tensor(…, requires_grad=True)",
    "Variable": "cl.Tensor(…, requires_grad=True)",
    "DataLoader": "cl.DataGenerator(x, y, batch_size=32)",
    "Dataset": "cl.DataGenerator(x, y, batch_size=32)",
    "TensorDataset": "cl.DataGenerator(x, y, batch_size=32)",
    "load_model": "cl.load(path)",
    "manual_seed": "cl.Model(seed=0); there is no global seed",
    "set_random_seed": "cl.Model(seed=0); there is no global seed",
    "from_numpy": "cl.Tensor(array)",
    # Layers
    "Dense": "cl.Linear(in_features, out_features)",
    "Conv1D": "cl.Conv1d",
    "Conv2D": "cl.Conv2d",
    "Conv1DTranspose": "cl.ConvTranspose1d",
    "Conv2DTranspose": "cl.ConvTranspose2d",
    "DepthwiseConv2D": "cl.Conv2d(channels, channels, kernel_size, groups=channels)",
    "MaxPooling1D": "cl.MaxPool1d",
    "MaxPooling2D": "cl.MaxPool2d",
    "MaxPool1D": "cl.MaxPool1d",
    "MaxPool2D": "cl.MaxPool2d",
    "AveragePooling1D": "cl.AvgPool1d",
    "AveragePooling2D": "cl.AvgPool2d",
    "GlobalAveragePooling1D": "cl.GlobalAvgPool()",
    "GlobalAveragePooling2D": "cl.GlobalAvgPool()",
    "AdaptiveAvgPool1d": "cl.GlobalAvgPool()",
    "AdaptiveAvgPool2d": "cl.GlobalAvgPool()",
    "GlobalMaxPooling1D": "cl.GlobalMaxPool()",
    "GlobalMaxPooling2D": "cl.GlobalMaxPool()",
    "AdaptiveMaxPool1d": "cl.GlobalMaxPool()",
    "AdaptiveMaxPool2d": "cl.GlobalMaxPool()",
    "UpSampling2D": "cl.Upsample(scale)",
    "BatchNormalization": "cl.BatchNorm(features)",
    "BatchNorm1d": "cl.BatchNorm(features)",
    "BatchNorm2d": "cl.BatchNorm(features)",
    "BatchNorm3d": "cl.BatchNorm(features)",
    "LayerNormalization": "cl.LayerNorm(features)",
    "GroupNormalization": "cl.GroupNorm(groups, channels)",
    "InstanceNorm1d": "cl.InstanceNorm(channels)",
    "InstanceNorm2d": "cl.InstanceNorm(channels)",
    "InstanceNorm3d": "cl.InstanceNorm(channels)",
    "RMSNormalization": "cl.RMSNorm(features)",
    "Dropout1d": "cl.Dropout(rate)",
    "Dropout2d": "cl.Dropout(rate)",
    "SimpleRNN": "cl.RNN(features, hidden)",
    "MultiheadAttention": "cl.MultiHeadAttention",
    "TransformerEncoderLayer": "cl.TransformerBlock",
    "Add": "x + y of Tensors; or cl.Residual(f), which is x + f(x)",
    "Concatenate": "cl.concatenate([a, b], axis=1)",
    "cat": "cl.concatenate([a, b], axis=1)",
    # Losses
    "CrossEntropyLoss": "cl.SoftmaxLoss(), of scores and integer labels",
    "NLLLoss": "cl.SoftmaxLoss(), of scores and integer labels",
    "CategoricalCrossentropy": "cl.SoftmaxLoss(), of scores and integer labels",
    "SparseCategoricalCrossentropy": "cl.SoftmaxLoss(), of scores and integer labels",
    "BCEWithLogitsLoss": "cl.SigmoidLoss(), of scores",
    "BCELoss": "cl.SigmoidLoss(), of scores: leave out Sigmoid",
    "BinaryCrossentropy": "cl.SigmoidLoss(), of scores: leave out Sigmoid",
    "L1Loss": "cl.MAELoss()",
    "MeanAbsoluteError": "cl.MAELoss()",
    "MeanSquaredError": "cl.MSELoss()",
    "SmoothL1Loss": "cl.HuberLoss()",
    "Huber": "cl.HuberLoss()",
    "Hinge": "cl.HingeLoss()",
    "MultiMarginLoss": "cl.HingeLoss()",
    # Optimizers and callbacks
    "RMSprop": "cl.RMSProp",
    "AdaGrad": "cl.Adagrad",
    "LBFGS": "cl.minimize(model, x, y, loss=loss)",
    "EarlyStopping": "cl.callbacks.EarlyStopping",
    "ModelCheckpoint": "cl.callbacks.Checkpoint",
    "ReduceLROnPlateau": "cl.callbacks.ReduceLROnPlateau",
}


def hint(name: str) -> str:
    """The end of a message about a missing name, with caffelite's name for it; "" if the name is not known."""
    return f"; caffelite has {NAMES[name]}" if name in NAMES else ""
