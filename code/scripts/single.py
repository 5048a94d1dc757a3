"""Stage 0, one device: python single.py

The stages are for learning. For a job, copy train.py, and start that one with
`torchrun --nproc-per-node 1 train.py DATA RUN`.
"""

import torch
from model import Adder, Sums
from torch.utils.data import DataLoader, RandomSampler

BATCH, EPOCHS = 128, 2


def main() -> list[float]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = Adder().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    data, order = Sums("train"), torch.Generator()
    sampler = RandomSampler(data, generator=order)
    loader = DataLoader(data, BATCH, sampler=sampler, drop_last=True)

    history = []
    for epoch in range(EPOCHS):
        order.manual_seed(epoch)
        losses = []
        for digits, following in loader:
            loss = model(digits.to(device), following.to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        history += torch.stack(losses).tolist()
        print(f"epoch {epoch}: loss {history[-1]:.3f}")
    return history


if __name__ == "__main__":
    main()
